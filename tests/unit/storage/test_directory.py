"""The top of the data directory: identity, offsets, clean stops and deletions outlive crashes."""

from random import Random

import pytest

from fencelog.errors import CorruptionError
from fencelog.log import layout
from fencelog.log.layout import META_PROPERTIES, RECOVERY_POINT_CHECKPOINT
from fencelog.storage.checkpoint import replace_file
from fencelog.storage.clean_stop import CleanStop
from fencelog.storage.directory import DataDirectory
from fencelog.storage.granted import Granted
from fencelog.storage.recover import Durability
from fencelog.types import Offset, TopicId, TopicPartition
from fencelog_sim.world.clocks import SimRandom
from fencelog_sim.world.disk import Loss, PowerCut, SimDisk
from tests.support.storage import cut_at, run

A, B = TopicPartition("a.b-c", 0), TopicPartition("a.b-c", 11)
TOPIC_ID = TopicId(bytes(16))


def opened(disk: SimDisk) -> DataDirectory:
    return run(DataDirectory.open(disk, SimRandom(Random(0))))


def left(end_offset: int) -> CleanStop:
    return CleanStop(Offset(end_offset), f"{end_offset:08x}")


def with_partitions() -> SimDisk:
    disk = SimDisk(operations=[])
    opened(disk)
    for partition in (A, B):
        run(disk.make_directory(DataDirectory.path_of(partition)))
    run(disk.sync_directory(""))
    return disk


def test_a_directory_keeps_its_cluster_id() -> None:
    disk = SimDisk()
    first = opened(disk).cluster_id
    assert len(first) == 22
    assert opened(disk.power_loss(Loss.ALL)).cluster_id == first


def test_names_that_a_killed_run_left_are_stable_before_they_count() -> None:  # D1
    disk = SimDisk()
    opened(disk)
    run(disk.make_directory(DataDirectory.path_of(A)))
    disk = disk.restarted()
    assert run(opened(disk).partitions()) == [A]
    assert run(opened(disk.power_loss(Loss.ALL)).partitions()) == [A]


def test_another_nodes_directory_is_refused() -> None:
    disk = SimDisk()
    opened(disk)
    with pytest.raises(CorruptionError, match=r"^meta\.properties: .*belongs to node 1"):
        run(DataDirectory.open(disk, SimRandom(Random(0)), node_id=2))


def opened_in(
    disk: SimDisk, cluster_id: str | None = "c" * 22, boot_id: str | None = None
) -> DataDirectory:
    """As a broker of a cluster opens it."""
    random = SimRandom(Random(0))
    return run(DataDirectory.open(disk, random, cluster_id=cluster_id, boot_id=boot_id))


def test_a_directory_belongs_to_the_cluster_that_it_was_made_for() -> None:
    disk = SimDisk()
    first = opened_in(disk)
    assert first.cluster_id == "c" * 22
    assert opened_in(disk).directory_id == first.directory_id
    assert opened(disk).cluster_id == "c" * 22
    with pytest.raises(CorruptionError, match=f"belongs to cluster {'c' * 22}.*cluster other"):
        opened_in(disk, "other")


def test_records_may_be_lost_where_an_unclean_stop_was_of_another_boot() -> None:
    disk = with_partitions()
    assert opened_in(disk, None, None).may_lack_records is False
    # Nobody knows of which boot it was.
    assert opened_in(disk, None, "first").may_lack_records is True
    directory = opened_in(disk, None, "first")
    run(directory.know_run("first", "os"))
    assert directory.may_lack_records is False
    assert opened_in(disk.power_loss(Loss.ALL), None, "first").may_lack_records is False
    assert opened_in(disk, None, "second").may_lack_records is True
    again = opened_in(disk, None, "second")
    assert again.may_lack_records is True  # the crash before ``know_run`` forgets nothing
    run(again.close({A: left(1), B: left(1)}))
    assert opened_in(disk, None, "third").may_lack_records is False
    assert opened_in(disk, None, "third").may_lack_records is True


def test_records_may_be_lost_where_a_stop_was_not_clean_for_each_partition() -> None:  # F8
    disk = with_partitions()
    directory = opened_in(disk, None, "first")
    run(directory.know_run("first", "os"))
    run(directory.close({A: left(1)}))  # B has failed, or could not be closed
    assert opened_in(disk.power_loss(Loss.ALL), None, "second").may_lack_records is True


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_whether_records_may_be_lost_follows_from_the_mode_of_the_run_that_wrote_them(
    durability: Durability,
) -> None:  # F8
    disk = with_partitions()
    run(opened_in(disk, None, "first").know_run("first", durability))
    assert opened_in(disk, None, "second").may_lack_records is (durability == "os")


def test_what_a_run_in_os_mode_has_left_counts_as_not_synced_until_a_clean_stop() -> None:
    disk = with_partitions()
    directory = opened_in(disk, None, "first")
    run(directory.know_run("first", "os"))
    run(opened_in(disk, None, "first").know_run("first", "fsync"))
    directory = opened_in(disk, None, "first")
    run(directory.know_run("first", "fsync"))  # a kill, and another one
    assert opened_in(disk.power_loss(Loss.ALL), None, "second").may_lack_records is True
    run(directory.close({A: left(1), B: left(1)}))
    run(opened_in(disk, None, "first").know_run("first", "fsync"))
    assert opened_in(disk, None, "second").may_lack_records is False


def test_what_the_metadata_had_granted_is_known_after_a_power_cut() -> None:  # E7, E17
    disk = SimDisk()
    directory = opened_in(disk)
    assert directory.granted == (0, -1)
    run(directory.know_granted(Granted(2000, -1)))
    assert opened_in(disk.power_loss(Loss.ALL)).granted == (2000, -1)
    run(directory.know_granted(Granted(1000, 7)))  # told late, or by a store that was restored
    run(directory.know_run("first", "os"))
    disk = disk.power_loss(Loss.ALL)
    again = opened_in(disk)
    assert again.granted == (2000, 7)
    run(again.know_granted(Granted(2001, 6)))
    assert opened_in(disk.power_loss(Loss.ALL)).granted == (2001, 7)


@pytest.mark.parametrize("name", ["fencelog.producer.ids", "fencelog.coordinator.epoch"])
def test_a_granted_number_that_is_none_is_damage(name: str) -> None:
    disk = SimDisk()
    opened_in(disk)
    text = disk.contents(META_PROPERTIES).decode()
    disk.overwrite(META_PROPERTIES, f"{text}{name}=-7\n".encode())
    with pytest.raises(CorruptionError, match=f"{name}=-7 is not a number"):
        opened_in(disk)


def test_a_new_directory_has_lost_nothing() -> None:
    assert opened_in(SimDisk(), boot_id="first").may_lack_records is False


def test_replicas_begin_with_the_high_watermarks_that_were_stored() -> None:
    disk = with_partitions()
    run(opened(disk).checkpoint({}, {}, {A: Offset(5)}))
    assert opened(disk).high_watermark(A) is None
    cluster_id = opened(disk).cluster_id
    directory = opened_in(disk, cluster_id)
    assert (directory.high_watermark(A), directory.high_watermark(B)) == (5, 0)
    run(directory.checkpoint({}, {}, {B: Offset(7)}))
    directory = opened_in(disk, cluster_id)
    assert (directory.high_watermark(A), directory.high_watermark(B)) == (5, 7)
    run(directory.remove_partitions({A: TOPIC_ID, B: TOPIC_ID}))
    run(disk.make_directory(DataDirectory.path_of(A)))
    assert opened_in(disk, cluster_id).high_watermark(A) == 0


def test_a_replica_that_is_made_anew_may_begin_lower() -> None:
    disk = with_partitions()
    directory = opened(disk)
    run(directory.checkpoint({A: Offset(9)}, {A: Offset(9)}))
    run(directory.begin_replica(A, Offset(4)))
    directory = opened_in(disk.power_loss(Loss.ALL), directory.cluster_id)
    assert (directory.log_start(A), directory.recovery_point(A)) == (4, 4)
    assert directory.high_watermark(A) == 4


def test_a_directory_without_a_format_is_an_older_one_and_gets_it() -> None:
    disk = SimDisk()
    cluster_id = opened(disk).cluster_id
    lines = disk.contents(META_PROPERTIES).decode().splitlines()
    older = [each for each in lines if "format" not in each]
    assert len(older) == len(lines) - 1
    disk.overwrite(META_PROPERTIES, "\n".join(older).encode())
    assert opened(disk).cluster_id == cluster_id
    assert disk.contents(META_PROPERTIES).decode().splitlines() == lines


def test_a_partition_without_its_directory_had_what_the_checkpoint_says() -> None:  # D3
    directory = opened(with_partitions())
    directory.check_new(A)
    run(directory.checkpoint({A: Offset(1)}))
    with pytest.raises(CorruptionError, match="had synced records below offset 1:"):
        directory.check_new(A)
    with pytest.raises(CorruptionError, match="was stored:"):
        directory.check_new(B, was_created=True)


def test_partitions_are_the_directories_of_that_form() -> None:
    disk = with_partitions()
    run(disk.make_directory("lost+found"))
    assert run(opened(disk).partitions()) == [A, B]


def test_checkpointed_offsets_survive_a_power_cut() -> None:
    disk = with_partitions()
    run(opened(disk).checkpoint({A: Offset(7)}, {A: Offset(3)}))
    again = opened(disk.power_loss(Loss.ALL))
    assert (again.recovery_point(A), again.log_start(A)) == (7, 3)
    assert (again.recovery_point(B), again.log_start(B)) == (0, 0)


def test_a_checkpoint_that_says_the_same_is_not_written_again() -> None:
    disk = with_partitions()
    directory = opened(disk)
    run(directory.checkpoint({A: Offset(7)}, {A: Offset(3)}))
    disk.operations.clear()
    run(directory.checkpoint({A: Offset(7)}, {A: Offset(3)}))
    assert disk.operations == []
    run(directory.checkpoint({A: Offset(8)}, {A: Offset(3)}))
    renamed = [path for verb, path in disk.operations if verb == "rename"]
    assert renamed == [RECOVERY_POINT_CHECKPOINT]


def test_log_starts_are_stored_ahead_of_recovery_points() -> None:
    disk = with_partitions()
    directory = opened(disk)
    disk.operations.clear()
    run(directory.checkpoint({A: Offset(7)}, {A: Offset(7)}))
    renamed = [path for verb, path in disk.operations if verb == "rename"]
    assert renamed == [layout.LOG_START_CHECKPOINT, layout.RECOVERY_POINT_CHECKPOINT]


def test_an_unreadable_checkpoint_is_damage_and_named() -> None:  # D3
    disk = with_partitions()
    run(replace_file(disk, layout.RECOVERY_POINT_CHECKPOINT, b"0\n1\nnonsense\n"))
    with pytest.raises(CorruptionError, match=layout.RECOVERY_POINT_CHECKPOINT):
        opened(disk)


def test_a_run_that_does_not_close_is_unclean() -> None:
    disk = with_partitions()
    run(opened(disk).close({A: left(1), B: left(2)}))
    second = opened(disk)
    assert second.take_clean(A)
    third = opened(disk.power_loss(Loss.ALL))
    assert not third.take_clean(A)
    assert not third.take_clean(B)


def test_a_partition_that_was_not_closed_stays_unclean_until_it_is() -> None:
    disk = with_partitions()
    first = opened(disk)
    run(first.close({A: left(1)}))
    second = opened(disk)
    assert second.take_clean(A)
    assert not second.take_clean(A)
    run(second.close({A: left(1)}))
    third = opened(disk)
    assert third.take_clean(A)
    assert not third.take_clean(B)
    run(third.close({A: left(1), B: left(1)}))
    assert opened(disk).take_clean(B)


def test_a_clean_partition_that_no_run_opened_stays_clean() -> None:
    disk = with_partitions()
    run(opened(disk).close({A: left(1), B: left(2)}))
    second = opened(disk)
    run(second.close({}))
    third = opened(disk)
    assert third.take_clean(A)
    assert third.recovery_point(B) == 2


def test_a_damaged_mark_of_a_clean_stop_only_costs_time() -> None:  # D3
    disk = with_partitions()
    run(opened(disk).close({A: left(1), B: left(2)}))
    marker = disk.contents(layout.CLEAN_SHUTDOWN)
    for content in (
        b"",
        marker[:-2],
        marker.replace(b"a.b-c-0", b"a.b-c-1"),
        b"[]",
        b'{"clean":1}',
    ):
        after = disk.power_loss(Loss.NONE)
        after.overwrite(layout.CLEAN_SHUTDOWN, content)
        assert opened(after).take_clean(A) is None
    kafkas = disk.power_loss(Loss.NONE)
    kafkas.overwrite(layout.CLEAN_SHUTDOWN, b'{"version":0,"brokerEpoch":5}')
    assert opened(kafkas).take_clean(A) is None
    assert opened(disk).take_clean(B) == "00000002"


@pytest.mark.parametrize("name", [layout.LOG_START_CHECKPOINT, layout.RECOVERY_POINT_CHECKPOINT])
def test_no_flipped_digit_of_a_checkpoint_is_believed(name: str) -> None:  # D3
    disk = with_partitions()
    run(opened(disk).checkpoint({A: Offset(92)}, {A: Offset(12)}))
    for number in range(8 * len(disk.contents(name))):
        damaged = disk.power_loss(Loss.NONE)
        damaged.corrupt(name, number // 8, 1 << number % 8)
        try:
            again = opened(damaged)
        except CorruptionError as error:
            assert name in str(error)  # noqa: PT017
        else:
            assert (again.recovery_point(A), again.log_start(A)) == (92, 12)


def test_a_removed_partition_is_gone_after_a_power_cut_and_leaves_no_offsets() -> None:
    disk = with_partitions()
    directory = opened(disk)
    run(directory.checkpoint({A: Offset(7)}, {A: Offset(3)}))
    run(directory.remove_partitions({A: TOPIC_ID}))
    run(directory.remove_partitions({A: TOPIC_ID}))
    run(disk.make_directory(DataDirectory.path_of(A)))
    run(disk.sync_directory(""))
    again = opened(disk.power_loss(Loss.ALL))
    assert (again.recovery_point(A), again.log_start(A)) == (0, 0)
    assert not again.take_clean(A)


def test_a_deletion_that_a_crash_cut_short_is_finished_at_the_next_start() -> None:
    cut, finished = 0, False
    while not finished:
        disk = with_partitions()
        directory = opened(disk)
        run(directory.checkpoint({A: Offset(7)}))
        cut_at(disk, cut)
        try:
            run(directory.remove_partitions({A: TOPIC_ID}))
            finished = True
        except PowerCut:
            cut += 1
        after = disk.power_loss(Loss.NONE)
        again = opened(after)
        partitions = run(again.partitions())
        run(again.finish_deletions())
        assert not [n for n in run(after.list("")) if n.endswith("-delete")]
        assert again.recovery_point(A) in ((0, 7) if A in partitions else (0,))
    assert cut > 3


def test_a_directory_that_vanished_is_damage_and_no_new_partition() -> None:  # D3
    disk = with_partitions()
    run(opened(disk).checkpoint({A: Offset(7), B: Offset(0)}))
    for partition in (A, B):
        run(disk.remove(DataDirectory.path_of(partition)))
    directory = opened(disk)
    directory.check_new(B)
    for _ in range(2):
        with pytest.raises(CorruptionError, match=r"a\.b-c-0.*below offset 7"):
            opened(disk).check_new(A)


def test_the_longest_topic_name_can_be_deleted() -> None:
    disk = SimDisk(operations=[])
    longest = TopicPartition("x" * 249, 2**31 - 1)
    directory = opened(disk)
    run(disk.make_directory(DataDirectory.path_of(longest)))
    disk.operations.clear()
    run(directory.remove_partitions({longest: TOPIC_ID}))
    (name,) = [path for verb, path in disk.operations if verb == "rename"]
    assert len(name) <= 255
    assert run(directory.partitions()) == []
