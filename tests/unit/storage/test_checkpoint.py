"""A small file is the old one or the new one, never a mixture."""

import pytest

from fencelog.errors import StorageError
from fencelog.storage.checkpoint import read_file, remove_file, replace_file
from fencelog_sim.world.disk import Loss, PowerCut, SimDisk
from tests.support.storage import run
from tests.unit.storage.machine import cut_at


def test_content_then_name_then_directory_become_durable_in_this_order() -> None:
    disk = SimDisk(operations=[])
    run(replace_file(disk, "a", b"one"))
    assert disk.operations == [
        ("create", "a.tmp"),
        ("append", "a.tmp"),
        ("sync", "a.tmp"),
        ("rename", "a"),
        ("sync_directory", ""),
    ]


@pytest.mark.parametrize("loss", list(Loss))
def test_a_power_cut_at_any_operation_leaves_the_old_file_or_the_new_one(loss: Loss) -> None:
    for cut in range(5):
        disk = SimDisk()
        run(replace_file(disk, "a", b"the old content"))
        cut_at(disk, cut)
        with pytest.raises(PowerCut):
            run(replace_file(disk, "a", b"new"))
        after = disk.power_loss(loss)
        assert run(read_file(after, "a")) in (b"the old content", b"new")
        run(replace_file(after, "a", b"newest"))
        assert run(read_file(after.power_loss(Loss.ALL), "a")) == b"newest"


def test_a_failed_sync_leaves_the_old_file() -> None:  # D2
    disk = SimDisk()
    run(replace_file(disk, "a", b"old"))
    disk.failing_syncs = 1
    with pytest.raises(StorageError):
        run(replace_file(disk, "a", b"new"))
    assert run(read_file(disk, "a")) == b"old"


def test_a_missing_file_reads_as_none_and_is_removed_durably() -> None:
    disk = SimDisk()
    assert run(read_file(disk, "a")) is None
    run(replace_file(disk, "a", b"one"))
    run(remove_file(disk, "a"))
    assert run(read_file(disk.power_loss(Loss.ALL), "a")) is None
