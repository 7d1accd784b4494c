"""Walks through one segment's file, and what is looked for in it."""

from dataclasses import dataclass

import pytest

from fencelog.errors import CorruptionError
from fencelog.log.values import ReadPlan
from fencelog.storage import segment
from fencelog.storage.segment import (
    find_batch,
    find_timestamp,
    read_batches,
    read_first_header,
    walk,
)
from fencelog.types import Offset, TimestampMs
from fencelog.wire.batch import HEADER_BYTES, Compression, assign, read_header, seal
from fencelog.wire.filtering import emptied
from fencelog.wire.records import RecordToWrite, build_batch
from fencelog_sim.world.disk import SimDisk, SimFile
from tests.support.storage import run

PATH = "a.log"


@dataclass
class Stored:
    """A file of batches, and where each begins."""

    disk: SimDisk
    positions: list[int]

    @classmethod
    def of(cls, *batches: bytes | bytearray) -> "Stored":
        disk = SimDisk()

        async def write() -> list[int]:
            file = await disk.open(PATH, create=True)
            positions = []
            for batch in batches:
                positions.append(file.size)
                await file.append([bytes(batch)])
            return positions

        return cls(disk, run(write()))

    async def file(self) -> SimFile:
        return await self.disk.open(PATH)


def batch_at(offset: int, *timestamps: int, value: bytes = b"v", **options: object) -> bytearray:
    """A batch of one record for each timestamp."""
    records = [RecordToWrite(None, value, timestamp) for timestamp in timestamps]
    batch = build_batch(records, **options)
    assign(memoryview(batch), Offset(offset), 0)
    return batch


def plan_of(stored: Stored, offset: int, upper: int) -> ReadPlan:
    end = len(stored.disk.contents(PATH))
    return ReadPlan(
        segment_base_offset=Offset(0),
        position=0,
        end_position=end,
        offset=Offset(offset),
        upper_offset=Offset(upper),
        max_bytes=1 << 20,
        reaches_upper=True,
        skip_to=0,
    )


def time_in(stored: Stored, timestamp: int, offset: int = 0) -> tuple[int, int] | None:
    async def pause() -> None:
        pass

    async def look() -> tuple[int, int] | None:
        plan = plan_of(stored, offset, 1000)
        return await find_timestamp(await stored.file(), PATH, plan, TimestampMs(timestamp), pause)

    return run(look())


@pytest.mark.parametrize("chunk", [61, 70, 200, 1 << 20])
@pytest.mark.parametrize("lost", [0, 1, 70])
def test_a_walk_sees_every_whole_batch_whatever_it_reads_at_once(chunk: int, lost: int) -> None:
    batches = [batch_at(number, number) for number in range(6)]
    stored = Stored.of(*batches[:-1], batches[-1][: len(batches[-1]) - lost])
    seen: list[tuple[int, int, bytes]] = []

    async def look() -> tuple[int, str | None]:
        def visit(header: object, batch: memoryview, position: int) -> None:
            seen.append((header.base_offset, position, bytes(batch)))

        return await walk(await stored.file(), visit, chunk)

    position, problem = run(look())
    count = 6 if not lost else 5
    assert seen == [(n, stored.positions[n], bytes(batches[n])) for n in range(count)]
    assert position == (stored.positions[5] if lost else len(stored.disk.contents(PATH)))
    assert (problem is None) is (lost == 0)


def test_a_walk_says_what_is_wrong_with_a_header() -> None:
    stored = Stored.of(batch_at(0, 1), bytes(61))

    async def look() -> str | None:
        return (await walk(await stored.file(), lambda *_: None)).problem

    assert "magic" in (run(look()) or "")


@pytest.mark.parametrize(("above", "found"), [(0, 2), (1, 2), (2, 3), (3, None)])
def test_a_sound_batch_is_found_behind_damage_up_to_the_last_byte(
    above: int, found: int | None
) -> None:
    damaged = batch_at(1, 1)
    damaged[-1] ^= 1
    stored = Stored.of(batch_at(0, 1), damaged, batch_at(2, 1), batch_at(3, 1, value=b""))

    async def look() -> int | None:
        return await find_batch(await stored.file(), stored.positions[1], Offset(above))

    assert run(look()) == (None if found is None else stored.positions[found])


def test_an_empty_file_has_no_first_header_and_a_short_one_is_damage() -> None:
    async def look(stored: Stored) -> object:
        return await read_first_header(await stored.file())

    assert run(look(Stored.of())) is None
    assert run(look(Stored.of(batch_at(3, 7)))) == read_header(batch_at(3, 7))
    with pytest.raises(CorruptionError, match="does not begin with a batch"):
        run(look(Stored.of(b"x")))


def test_a_read_beyond_the_last_batch_finds_nothing() -> None:
    stored = Stored.of(batch_at(0, 1), batch_at(1, 1))

    async def look(offset: int) -> tuple[bytes, int]:
        found = await read_batches(await stored.file(), PATH, plan_of(stored, offset, 2))
        return bytes(found.data), found.end_offset

    assert run(look(1)) == (bytes(batch_at(1, 1)), 2)
    assert run(look(2)) == (b"", 2)


# A time


def test_a_time_is_that_of_the_first_record_not_older_and_in_range() -> None:
    stored = Stored.of(batch_at(0, 5, 9, 7), batch_at(3, 6), batch_at(4, 20))
    found = {time: time_in(stored, time) for time in (0, 5, 6, 9, 10, 21)}
    assert found == {0: (0, 5), 5: (0, 5), 6: (1, 9), 9: (1, 9), 10: (4, 20), 21: None}
    assert time_in(stored, 6, offset=2) == (2, 7)


def test_a_batch_that_begins_before_the_range_answers_for_its_records_in_range_only() -> None:
    stored = Stored.of(batch_at(0, 50, 1, 2), batch_at(3, 60))
    assert time_in(stored, 40, offset=1) == (3, 60)


def test_a_header_without_records_answers_for_none() -> None:
    without_records = emptied(read_header(batch_at(0, 50)))
    assert time_in(Stored.of(without_records, batch_at(1, 60)), 40) == (1, 60)


def test_a_time_that_only_the_header_has_is_that_of_its_first_offset() -> None:
    batch = batch_at(4, 5, 6)
    stored = Stored.of(seal(read_header(batch)._replace(max_timestamp=99), batch[HEADER_BYTES:]))
    assert time_in(stored, 50) == (4, 99)


def test_a_batch_that_grows_beyond_the_limit_is_not_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = Stored.of(batch_at(0, 1, 5, value=b"v" * 5000, compression=Compression.GZIP))
    assert time_in(stored, 5) == (1, 5)
    monkeypatch.setattr(segment, "_OPENED_BYTES_MAX", 1000)
    assert time_in(stored, 5) == (0, 5)
