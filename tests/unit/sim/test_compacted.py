"""The checker of compaction: what may go, what may not, and what a crash may revert."""

from collections.abc import Sequence

import pytest

from fencelog.log import layout
from fencelog.types import LeaderEpoch, Offset
from fencelog.wire.batch import assign, read_header
from fencelog.wire.filtering import emptied, scan, with_records
from fencelog.wire.records import RecordToWrite, build_batch
from tests.unit.sim.files import DATA, NOW_MS, Files, marker

SECOND = 3
"""Base offset of the second file, after the three batches of the first."""


def keyed(
    *pairs: tuple[str, str | None], producer_id: int = -1, sequence: int = -1, txn: bool = False
) -> bytearray:
    return build_batch(
        [RecordToWrite(k.encode(), None if v is None else v.encode(), NOW_MS) for k, v in pairs],
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=sequence,
        transactional=txn,
    )


def placed(batch: bytes | bytearray, offset: int) -> bytes:
    batch = bytearray(batch)
    assign(memoryview(batch), Offset(offset), LeaderEpoch(0))
    return bytes(batch)


def without(batch: bytes, *deltas: int, horizon: int | None = None) -> bytes:
    """A stored batch without some of its records."""
    header = read_header(batch)
    plain, records = scan(header, memoryview(batch))
    kept = [each for each in records if each.offset_delta not in deltas]
    return bytes(with_records(header, plain, kept, horizon))


def filled(*first: bytearray, then: Sequence[bytearray] = ()) -> Files:
    """Two files: one that may be compacted, and the one that grows."""
    files = Files()
    files.append(DATA, *first)
    files.append(DATA, *then, segment=files.log().end)
    assert files.said == ""
    return files


def swap(files: Files, *batches: bytes, base: int = 0) -> str:
    """Give a compacted file the name that says what it stands for; returns the problems."""
    name = f"{DATA}/{layout.file_name(base, layout.LOG)}{layout.SWAP}"
    files.files[name] = bytearray(b"".join(batches))
    files.oracle.renamed(name)
    return files.said


def test_superseded_records_may_go_and_the_last_batch_stays() -> None:  # D4
    old, new, last = keyed(("k", "1"), ("j", "1")), keyed(("k", "2")), keyed(("k", "3"))
    files = filled(old, new, last, then=[keyed(("k", "4"))])
    kept = [
        without(placed(old, 0), 0),
        bytes(emptied(read_header(placed(last, SECOND)))),
    ]
    assert swap(files, *kept) == ""
    assert [each.header.base_offset for each in files.log().batches] == [0, SECOND, SECOND + 1]


def test_a_crash_may_bring_back_what_compaction_removed() -> None:  # D4, E15
    old, new = keyed(("k", "1")), keyed(("k", "2"))
    files = filled(old, new, then=[keyed(("k", "3"))])
    assert swap(files, placed(new, 1)) == ""
    files.crash(promised=3)
    assert files.said == ""
    assert [each.header.base_offset for each in files.log().batches] == [0, 1, 2]
    again = placed(new, 1)
    assert swap(files, again) == ""
    files.files[f"{DATA}/{layout.file_name(0, layout.LOG)}"][:] = again
    files.crash(promised=3)
    assert files.said == ""
    assert [each.header.base_offset for each in files.log().batches] == [1, 2]


@pytest.mark.parametrize(
    ("pairs", "gone", "said"),
    [
        ([("k", "1"), ("j", "1")], 1, "took the newest record of b'j', at 1"),
        ([("k", "1"), ("j", None)], 1, "took the tombstone at 1 before its time"),
    ],
)
def test_a_record_that_counts_may_not_be_removed(  # D4
    pairs: list[tuple[str, str | None]], gone: int, said: str
) -> None:
    old = keyed(*pairs)
    files = filled(old, then=[keyed(("k", "2"))])
    assert said in swap(files, without(placed(old, 0), gone))


def test_nothing_new_may_come() -> None:  # D4
    old = keyed(("k", "1"))
    files = filled(old, then=[keyed(("k", "2"))])
    assert "changed the record at 0" in swap(files, placed(keyed(("k", "9")), 0))
    files = filled(old, keyed(("k", "2")), then=[keyed(("k", "3"))])
    other = placed(keyed(("k", "2"), producer_id=5, sequence=0), 1)
    assert "made a batch at 1 that was not there" in swap(files, other)


def test_the_compacted_file_ends_where_the_old_ones_did() -> None:  # D3
    old = keyed(("k", "1"))
    files = filled(old, keyed(("k", "2")), keyed(("k", "3")), then=[keyed(("k", "4"))])
    files.oracle.logs[str(DATA)].batches[1:2] = []
    assert "ends at 1, not where it did" in swap(files, placed(old, 0))


def test_the_last_batch_of_a_producer_stays() -> None:  # D4, E15
    first = keyed(("k", "1"), producer_id=5, sequence=0)
    files = filled(first, keyed(("k", "2")), then=[keyed(("k", "3"))])
    assert "took the last batch of producer 5" in swap(files, placed(keyed(("k", "2")), 1))


def test_markers_stay_longer_than_their_records() -> None:  # D4
    old = keyed(("k", "1"), producer_id=5, sequence=0, txn=True)
    files = Files()
    files.append(DATA, old, marker(5), keyed(("k", "2")))
    files.append(DATA, keyed(("j", "1"), producer_id=5, sequence=1), segment=SECOND)
    files.oracle.violations.clear()  # no coordinator is known here
    said = swap(files, placed(old, 0), placed(keyed(("k", "2")), 2))
    assert "took the marker at 1 before its time" in said
    assert "took the marker at 1, but not 0" in said


def test_nothing_above_the_last_stable_offset_is_touched() -> None:  # D4
    files = Files()
    files.append(DATA, keyed(("k", "1")), keyed(("k", "2"), producer_id=5, sequence=0, txn=True))
    files.append(DATA, keyed(("k", "3")), segment=2)
    files.oracle.violations.clear()
    said = swap(files, placed(keyed(("k", "2"), producer_id=5, sequence=0, txn=True), 1))
    assert "offsets up to 2 are compacted, but the LSO is 1" in said
