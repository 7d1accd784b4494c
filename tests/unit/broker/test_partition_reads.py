"""What a partition reads: whole batches, up to where the isolation may see."""

import asyncio

import pytest

from fencelog.errors import ErrorCode
from fencelog.log.config import LogConfig
from fencelog.log.values import Isolation, ReadPlan
from fencelog.storage.segment import Batches
from fencelog.types import Offset
from fencelog.wire.batch import iterate
from tests.support.log import abort, commit
from tests.support.partition import EVERY, Reading, Rig, scenario


@pytest.mark.parametrize(
    ("max_bytes", "at_least_one", "expected"),
    [
        (0, True, [0]),
        (0, False, []),
        (-1, True, [0]),
        (-1, False, []),
        (1, True, [0]),
        (1, False, [0]),
        (81, False, [0]),
        (161, False, [0]),
        (162, False, [0, 1]),
        (EVERY, False, [0, 1, 2]),
    ],
)
def test_a_read_returns_whole_batches_and_the_first_one_even_above_the_limit(
    max_bytes: int, at_least_one: bool, expected: list[int]
) -> None:
    async def run() -> None:
        rig = await Rig.of()
        for _ in range(3):
            rig.append()  # 81 bytes each
        await rig.flush()
        found = await rig.partition.read(
            Offset(0), max_bytes, Isolation.REPLICATED, at_least_one=at_least_one
        )
        assert found[:4] == (ErrorCode.NONE, 3, 3, 0)
        assert [header.base_offset for header, _ in iterate(found.records)] == expected

    asyncio.run(run())


@scenario
async def test_only_a_transactional_reader_is_told_what_is_aborted() -> None:  # E10
    rig = await Rig.of()
    rig.append_in_transaction(5)
    rig.append_in_transaction(6)
    rig.mark(abort(5))
    rig.mark(commit(6))
    rig.append_in_transaction(5, 1)
    rig.mark(abort(5))
    await rig.flush()
    found = {each: await rig.partition.read(Offset(0), EVERY, each) for each in Isolation}
    aborted = [(5, 0), (5, 4)]
    assert [each[:2] for each in found[Isolation.TRANSACTIONAL].aborted] == aborted
    assert found[Isolation.REPLICATED].aborted == ()
    assert found[Isolation.TAIL].aborted == ()
    # Of what was returned, not of what was asked for.
    first = await rig.partition.read(Offset(0), 0, Isolation.TRANSACTIONAL)
    assert [each[:2] for each in first.aborted] == [(5, 0)]
    nothing = await rig.partition.read(Offset(0), 0, Isolation.TRANSACTIONAL, at_least_one=False)
    assert nothing.aborted == ()
    rest = await rig.partition.read(Offset(3), EVERY, Isolation.TRANSACTIONAL)
    assert [each[:2] for each in rest.aborted] == [(5, 4)]


@scenario
async def test_a_read_tells_the_ends_of_the_log_where_the_offset_is_out_of_range() -> None:
    rig = await Rig.of()
    rig.append(count=2)
    rig.append_in_transaction(5, count=2)
    await rig.flush()
    rig.partition.advance_start(Offset(1))
    for offset in (0, 5):
        found = await rig.partition.read(Offset(offset), EVERY, Isolation.REPLICATED)
        assert found[:4] == (ErrorCode.OFFSET_OUT_OF_RANGE, 4, 2, 1)
        assert not found.records
    at_the_end = await rig.partition.read(Offset(4), EVERY, Isolation.REPLICATED)
    assert (at_the_end.error, bytes(at_the_end.records)) == (ErrorCode.NONE, b"")


@scenario
async def test_the_ends_are_no_newer_than_the_records_that_come_with_them() -> None:
    rig = await Rig.of()
    rig.append()
    await rig.flush()

    rig.append()
    await rig.partition.write()
    original = rig.partition._store.read

    async def read(plan: ReadPlan, *, to_send: bool) -> Batches:
        rig.partition.flushed(Offset(2))
        return await original(plan, to_send=to_send)

    class Racing:
        """The store, with a flush that ends while it reads."""

        def __init__(self) -> None:
            self.read = read

    rig.partition._reads._store = Racing()  # type: ignore[assignment]
    found = await rig.partition.read(Offset(0), EVERY, Isolation.REPLICATED)
    assert (found.high_watermark, found.last_stable_offset) == (1, 1)
    assert [header.base_offset for header, _ in iterate(found.records)] == [0]
    assert rig.partition.log.high_watermark == 2


@pytest.mark.parametrize("start", [2, 3])
async def test_what_a_read_returns_stays_aborted_where_the_log_start_passes_it_meanwhile(
    start: int,
) -> None:  # E10
    rig = await Rig.of()
    rig.append_in_transaction(5)
    rig.mark(abort(5))
    rig.append()
    await rig.flush()
    original = rig.partition._store.read

    class Racing:
        """The store, with a DeleteRecords that ends while it reads."""

        async def read(self, plan: ReadPlan, *, to_send: bool) -> Batches:
            found = await original(plan, to_send=to_send)
            rig.partition.advance_start(Offset(start))
            return found

    rig.partition._reads._store = Racing()  # type: ignore[assignment]
    found = await rig.partition.read(Offset(0), EVERY, Isolation.TRANSACTIONAL)
    assert [header.base_offset for header, _ in iterate(found.records)] == [0, 1, 2]
    assert [each[:2] for each in found.aborted] == [(5, 0)]
    rest = await rig.partition.read(Offset(start), EVERY, Isolation.TRANSACTIONAL)
    assert not rest.aborted


# -- settings and upkeep -----------------------------------------------------------------------


@scenario
async def test_new_settings_hold_at_once() -> None:
    rig = await Rig.of()
    assert (rig.partition.stamps_on_append, rig.partition.is_compacted) == (False, False)
    rig.partition.reconfigure(
        LogConfig(message_timestamp_type="LogAppendTime", cleanup_policy=frozenset({"compact"}))
    )
    assert (rig.partition.stamps_on_append, rig.partition.is_compacted) == (True, True)
    assert rig.partition.log.config.message_timestamp_type == "LogAppendTime"


@scenario
async def test_a_new_log_start_interrupts_readers() -> None:
    rig = await Rig.of()
    rig.append(count=2)
    await rig.flush()
    reader = Reading()
    rig.partition.add_reader(reader)
    assert rig.partition.advance_start(Offset(1)) == []
    assert reader.calls == ["interrupted"]
    assert rig.partition.log.log_start_offset == 1
