"""The newest batches from memory: the same as from the file, and never more than the limit."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencelog.broker.partitions.tail_cache import BATCH_BYTES, WRITE_BYTES, TailCache
from fencelog.log.values import Isolation, ReadPlan
from fencelog.storage.partition_store import PartitionStore
from fencelog.types import Offset
from fencelog.wire.batch import iterate, read_header
from tests.support.log import NOW_MS, commit, make_batch
from tests.support.partition import Rig, scenario


@pytest.fixture
def store_reads(monkeypatch: pytest.MonkeyPatch) -> list[ReadPlan]:
    """What is read from the store."""
    plans: list[ReadPlan] = []
    original = PartitionStore.read

    async def read(store: PartitionStore, plan: ReadPlan, **how: Any) -> Any:
        plans.append(plan)
        return await original(store, plan, **how)

    monkeypatch.setattr(PartitionStore, "read", read)
    return plans


def cache_of(rig: Rig) -> TailCache:
    return rig.partition._tail._cache


async def followed(**config: object) -> Rig:
    """A partition whose reader is at its end."""
    rig = await Rig.of(**config)
    rig.append()
    await rig.flush()
    assert await rig.offsets(Isolation.REPLICATED) == [0]
    return rig


def test_a_reader_at_the_end_is_served_from_memory(store_reads: list[ReadPlan]) -> None:
    async def run() -> None:
        rig = await followed()
        assert len(store_reads) == 1
        for number in range(1, 4):
            rig.append()
            await rig.flush()
            assert await rig.offsets(Isolation.REPLICATED, number) == [number]
        assert await rig.offsets(Isolation.REPLICATED, 2) == [2, 3]
        assert len(store_reads) == 1
        assert await rig.offsets(Isolation.REPLICATED) == [0, 1, 2, 3]
        assert len(store_reads) == 2

    asyncio.run(run())


@scenario
async def test_without_a_reader_nothing_is_kept() -> None:
    rig = await Rig.of()
    rig.append()
    await rig.flush()
    rig.append()
    await rig.flush()
    assert cache_of(rig).bytes == 0


@scenario
async def test_a_frame_counts_whole_and_is_not_kept_for_a_small_part_of_it() -> None:
    rig = await followed()
    size = len(make_batch())
    frames = [bytearray(2 * size), bytearray(2 * size + 1)]
    for frame in frames:
        frame[:size] = make_batch()
        one = memoryview(frame)[:size]
        rig.partition.append(one, read_header(one), now_ms=NOW_MS)
    await rig.flush()
    assert cache_of(rig).bytes == 2 * size + size + WRITE_BYTES + 2 * BATCH_BYTES
    found = await rig.partition.read(Offset(1), 1 << 20, Isolation.REPLICATED)
    assert [part.obj is frame for part, frame in zip(found.parts, frames, strict=True)] == [
        True,
        False,
    ]
    rig.partition.compacted()
    assert cache_of(rig).bytes == 0


@scenario
async def test_who_does_not_read_costs_memory_up_to_the_limit_and_no_longer() -> None:
    rig = await followed()
    cache_of(rig)._bytes_max = limit = 5000
    highest = 0
    for _ in range(20):
        rig.append()
        await rig.flush()
        highest = max(highest, cache_of(rig).bytes)
    assert 4000 < highest <= limit
    assert cache_of(rig).bytes == 0
    assert await rig.offsets(Isolation.REPLICATED, 18) == [18, 19, 20]


@scenario
async def test_nothing_above_the_high_watermark_is_served() -> None:  # D1
    rig = await followed()
    rig.append()
    await rig.flush()
    rig.append()
    await rig.partition.write()
    assert await rig.offsets(Isolation.REPLICATED, 2) == []
    assert await rig.offsets(Isolation.REPLICATED, 1) == [1]
    assert await rig.offsets(Isolation.TAIL, 1) == [1, 2]


@scenario
async def test_nothing_above_the_last_stable_offset_is_served() -> None:  # E10
    rig = await followed()
    rig.append()
    rig.append_in_transaction(5)
    rig.append()
    await rig.flush()
    assert await rig.offsets(Isolation.TRANSACTIONAL, 1) == [1]
    rig.mark(commit(5))
    await rig.flush()
    assert await rig.offsets(Isolation.TRANSACTIONAL, 1) == [1, 2, 3, 4]


@scenario
async def test_a_failed_write_leaves_nothing_to_serve() -> None:  # D2
    rig = await followed()
    rig.append()
    rig.disk.free_bytes = 0
    assert await rig.partition.write() is None
    assert cache_of(rig).bytes == 0
    for isolation in Isolation:
        assert await rig.offsets(isolation, 1) == []


@scenario
async def test_a_deleted_partition_holds_no_memory() -> None:
    rig = await followed()
    rig.append()
    await rig.flush()
    assert cache_of(rig).bytes > 0
    rig.partition.remove()
    assert cache_of(rig).bytes == 0


@given(
    counts=st.lists(st.integers(1, 3), min_size=1, max_size=12),
    reads=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 600)), min_size=1, max_size=12),
    segment_bytes=st.sampled_from([300, 1000, 1 << 20]),
)
@settings(max_examples=60, deadline=None)
def test_memory_and_file_have_the_same_batches(
    counts: list[int], reads: list[tuple[int, int]], segment_bytes: int
) -> None:
    async def run() -> None:
        rig = await followed(segment_bytes=segment_bytes, index_interval_bytes=100)
        for number, count in enumerate(counts):
            rig.append(count=count)
            if number % 2:
                await rig.flush()
        await rig.flush()
        partition = rig.partition
        for offset, max_bytes in reads:
            start = Offset(min(offset, partition.log.log_end_offset))
            plan = partition.log.read(start, max_bytes, Isolation.REPLICATED)
            assert isinstance(plan, ReadPlan)
            if plan.is_empty:
                continue
            stored = await partition._store.read(plan)
            expected = [h.base_offset for h, _ in iterate(stored.data)]
            found = partition._tail.read(plan)
            if start > 1:
                assert found is not None
            if found is not None:
                parts, end_offset = found
                got = [h.base_offset for part in parts for h, _ in iterate(part)]
                # A read from a file ends with its segment, and has at least a header's bytes.
                is_short = max_bytes < 61 or not plan.reaches_upper
                assert got[: len(expected)] == expected or max_bytes < 61
                assert is_short or (got, end_offset) == (expected, stored.end_offset)
                assert sum(map(len, parts)) <= max_bytes or len(got) == 1

    asyncio.run(run())


@scenario
async def test_it_goes_on_where_it_was_interrupted() -> None:
    rig = await followed()
    rig.append()
    await rig.flush()
    rig.partition.compacted()
    rig.append()
    await rig.flush()
    assert await rig.offsets(Isolation.REPLICATED, 1) == [1, 2]
    rig.append()
    await rig.flush()
    assert await rig.offsets(Isolation.REPLICATED, 2) == [2, 3]
    assert await rig.offsets(Isolation.REPLICATED, 3) == [3]
