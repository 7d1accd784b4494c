"""A read returns the same batches as a walk through the whole segment, whatever the index knows."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencelog.log.config import LogConfig
from fencelog.log.values import Isolation, ReadPlan
from fencelog.types import Offset
from fencelog.wire.batch import BatchHeader, iterate
from fencelog_sim.world.disk import SimFile
from tests.support.storage import World

BATCHES = st.lists(
    st.tuples(st.integers(0, 400), st.integers(1, 4), st.booleans()), min_size=1, max_size=25
)


def expected(
    stored: list[tuple[BatchHeader, bytes]], plan: ReadPlan, last_segment_offset: Offset
) -> list[Offset]:
    """What a plan asks for, by looking at every batch of the log."""
    found: list[Offset] = []
    size = 0
    for header, _ in stored:
        if header.next_offset <= plan.offset or header.base_offset < plan.segment_base_offset:
            continue
        size += header.size
        is_too_much = bool(found) and size > max(plan.max_bytes, 61)
        if (
            header.next_offset > plan.upper_offset
            or header.base_offset >= last_segment_offset
            or is_too_much
        ):
            break
        found.append(header.base_offset)
    return found


@given(
    batches=BATCHES,
    interval=st.sampled_from([0, 150, 600, 4096]),
    segment_bytes=st.sampled_from([900, 3000, 1 << 20]),
    max_bytes=st.lists(st.integers(0, 4000), min_size=1, max_size=3),
)
@settings(max_examples=60, deadline=None)
def test_a_read_finds_both_ends_of_its_range(
    batches: list[tuple[int, int, bool]], interval: int, segment_bytes: int, max_bytes: list[int]
) -> None:
    async def run() -> None:
        config = LogConfig(index_interval_bytes=interval, segment_bytes=segment_bytes)
        world = await World.create(config=config)
        sequence = 0
        for size, count, transactional in batches:
            values = [b"x" * size] * count
            if transactional:
                world.append_transactional(7, sequence, *values)
                sequence += count
            else:
                world.append_values(*values)
        await world.flush()
        log = world.log
        stored = [(h, bytes(b)) for h, b in iterate(await world.read_all())]
        ends = [*log.segment_base_offsets[1:], log.log_end_offset]
        for offset in range(log.log_end_offset):
            for isolation in Isolation:
                for limit in max_bytes:
                    plan = log.read(Offset(offset), limit, isolation)
                    assert isinstance(plan, ReadPlan)
                    end = min(each for each in ends if each > plan.segment_base_offset)
                    found = await world.store.read(plan)
                    wanted = expected(stored, plan, end)
                    assert [h.base_offset for h, _ in iterate(found.data)] == wanted
                    assert plan.end_position - plan.position >= len(found.data)
                    if wanted:
                        last = next(h for h, _ in stored if h.base_offset == wanted[-1])
                        assert found.end_offset == last.next_offset

    asyncio.run(run())


@pytest.mark.parametrize(("size", "maps"), [(10, 0), (20_000, 1)], ids=["small", "large"])
def test_what_is_only_sent_is_mapped_unless_the_search_has_read_it(
    monkeypatch: pytest.MonkeyPatch, size: int, maps: int
) -> None:
    mapped: list[int] = []

    async def look() -> None:
        world = await World.create(config=LogConfig())
        world.append_values(b"x" * size)
        await world.flush()
        original = SimFile.map

        async def counted(file: SimFile, position: int, size: int) -> bytes:
            mapped.append(size)
            return await original(file, position, size)

        monkeypatch.setattr(SimFile, "map", counted)
        plan = world.log.read(Offset(0), 1 << 20, Isolation.REPLICATED)
        assert isinstance(plan, ReadPlan)
        for to_send in (False, True):
            found = await world.store.read(plan, to_send=to_send)
            assert bytes(found.data) == world.appended[0]

    asyncio.run(look())
    assert len(mapped) == maps
