"""A log is newer than the metadata only if its checkpoint and a batch say so."""

import pytest

from fencelog.log import layout
from fencelog.log.values import EpochStart
from fencelog.storage.checkpoint import replace_file
from fencelog.storage.newer_epoch import newer_epoch
from fencelog.types import LeaderEpoch, Offset
from fencelog_sim.world.disk import SimDisk
from tests.support.storage import batch_of, run

EPOCH_AT = 12
"""Where a batch has its leader epoch."""
CHECKPOINT = f"p/{layout.LEADER_EPOCH_CHECKPOINT}"


async def written(disk: SimDisk, *, last: int, known: list[tuple[int, int]]) -> None:
    """Two segments of two batches each, one record in a batch; the last one is of epoch ``last``.

    ``known``: what the checkpoint has.
    """
    await disk.make_directory("p")
    for base in (0, 2):
        batches = [batch_of(b"x"), batch_of(b"y")]
        for index, batch in enumerate(batches):
            batch[:8] = (base + index).to_bytes(8)
        if base:
            batches[1][EPOCH_AT : EPOCH_AT + 4] = last.to_bytes(4)
        file = await disk.open(f"p/{layout.file_name(Offset(base), layout.LOG)}", create=True)
        await file.append(batches)
        await file.close()
    entries = [EpochStart(epoch, Offset(offset)) for epoch, offset in known]
    await replace_file(disk, CHECKPOINT, layout.encode_leader_epochs(entries).encode())


@pytest.mark.parametrize(
    ("last", "known", "newest", "found"),
    [
        (7, [(0, 0), (7, 3)], 3, 7),
        (7, [(0, 0), (7, 3)], 7, None),
        (7, [(7, 0)], 3, 7),
        (0, [(0, 0), (7, 3)], 3, None),
        (7, [(0, 0)], 3, None),
        (7, [], 3, None),
    ],
)
def test_both_must_have_the_epoch(
    last: int, known: list[tuple[int, int]], newest: int, found: int | None
) -> None:
    disk = SimDisk()
    run(written(disk, last=last, known=known))
    assert run(newer_epoch(disk, "p", LeaderEpoch(newest))) == found


def test_a_new_partition_and_a_damaged_checkpoint_say_nothing() -> None:
    disk = SimDisk()
    assert run(newer_epoch(disk, "p", LeaderEpoch(0))) is None
    run(written(disk, last=7, known=[(0, 0), (7, 3)]))
    disk.corrupt(CHECKPOINT, 0, 0xFF)
    assert run(newer_epoch(disk, "p", LeaderEpoch(0))) is None
