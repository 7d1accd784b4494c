"""The bytes and names on disk are Kafka's (layout, indexes, leader epochs, producer snapshot)."""

import struct

import pytest
from crc32c import crc32c

from fencelog.errors import CorruptionError
from fencelog.log import layout
from fencelog.log.index import OffsetIndex, TimeIndex
from fencelog.log.producers import Producers
from fencelog.log.snapshot import Snapshot, decode_snapshot, encode_snapshot
from fencelog.log.values import AbortedTransaction, EpochStart
from fencelog.types import TopicPartition
from tests.support.log import Driver, abort, snapshot_of

# Names


@pytest.mark.parametrize(
    ("offset", "suffix", "name"),
    [
        (0, layout.LOG, "00000000000000000000.log"),
        (170, layout.INDEX, "00000000000000000170.index"),
        ((1 << 63) - 1, layout.TIME_INDEX, "09223372036854775807.timeindex"),
        (5, layout.TXN_INDEX, "00000000000000000005.txnindex"),
        (5, layout.SNAPSHOT, "00000000000000000005.snapshot"),
    ],
)
def test_file_names_are_twenty_digits_and_a_suffix(offset: int, suffix: str, name: str) -> None:
    assert layout.file_name(offset, suffix) == name
    assert layout.parse_file_name(name) == (offset, suffix)


@pytest.mark.parametrize("name", ["0.log", "00000000000000000000.tmp", "partition.metadata", ""])
def test_other_names_are_no_files_of_the_log(name: str) -> None:
    assert layout.parse_file_name(name) is None


@pytest.mark.parametrize(
    ("name", "partition"),
    [
        ("flights-0", TopicPartition("flights", 0)),
        ("a-b.c_d-12", TopicPartition("a-b.c_d", 12)),
        ("__consumer_offsets-3", TopicPartition("__consumer_offsets", 3)),
    ],
)
def test_directories_are_named_by_topic_and_partition(name: str, partition: TopicPartition) -> None:
    assert layout.directory_name(partition) == name
    assert layout.parse_directory_name(name) == partition


@pytest.mark.parametrize("name", ["flights", "flights-x", "-1", "a/b-0", "fl ights-0"])
def test_other_directories_are_no_partitions(name: str) -> None:
    assert layout.parse_directory_name(name) is None


def test_a_deleted_directory_is_no_partition() -> None:
    name = layout.deleted_directory_name(TopicPartition("flights", 0), bytes(range(16)))
    assert layout.is_deleted_directory_name(name)
    assert layout.parse_directory_name(name) is None
    assert not layout.is_deleted_directory_name("flights-0")


# Text files


def test_leader_epochs_have_kafkas_checkpoint_form() -> None:
    text = "0\n2\n0 0\n3 41\n"
    entries = [EpochStart(0, 0), EpochStart(3, 41)]
    assert layout.encode_leader_epochs(entries) == text
    assert layout.decode_leader_epochs(text) == entries


def test_offset_checkpoints_have_kafkas_form() -> None:
    text = "0\n3\na 1 5\nb-c 0 7\n#crc32c 0 674720507\n"
    offsets = {TopicPartition("b-c", 0): 7, TopicPartition("a", 1): 5}
    assert layout.encode_offsets(offsets) == text
    assert layout.decode_offsets(text) == offsets
    assert layout.decode_offsets("0\n2\na 1 5\nb-c 0 7\n") == offsets, "Kafka's own"
    with pytest.raises(CorruptionError, match="checksum"):
        layout.decode_offsets(text.replace("b-c 0 7", "b-c 0 5"))


def test_a_checkpoint_with_a_name_in_another_alphabet_is_damage() -> None:
    text = layout.encode_offsets({TopicPartition("a", 0): 7})
    with pytest.raises(CorruptionError, match="checksum"):
        layout.decode_offsets(text.replace("a 0 7", "\u00e4 0 7"))


@pytest.mark.parametrize(
    "text", ["", "0", "0\n", "1\n0\n", "0\n1\n", "0\n1\n1 2", "0\n0\n1 2\n", "0\nx\n", "0\n1\n1\n"]
)
def test_a_damaged_checkpoint_is_never_read_in_part(text: str) -> None:
    with pytest.raises(CorruptionError):
        layout.decode_leader_epochs(text)


@pytest.mark.parametrize(
    ("suffix", "base"), [(".log.swap", 5), (".log", None), (".index.swap", None), (".swap", None)]
)
def test_only_a_log_is_swapped(suffix: str, base: int | None) -> None:
    assert layout.parse_swap_name(f"{5:020d}{suffix}") == base


@pytest.mark.parametrize("text", ["0\n2\n1 0\n1 5\n", "0\n2\n1 5\n2 4\n"])
def test_leader_epochs_that_go_back_are_damage(text: str) -> None:
    with pytest.raises(CorruptionError):
        layout.decode_leader_epochs(text)


def test_partition_metadata_names_the_topic_id_as_kafka_prints_it() -> None:
    topic_id = bytes.fromhex("feedbeef" * 4)
    text = layout.encode_partition_metadata(topic_id)
    assert text == "version: 0\ntopic_id: _u2-7_7tvu_-7b7v_u2-7w"
    assert layout.decode_partition_metadata(text) == topic_id


@pytest.mark.parametrize(
    "text",
    ["", "version: 1\ntopic_id: x", "version: 0\ntopic_id: abc", "version: 0\ntopic_id: abcde"],
)
def test_damaged_partition_metadata_is_damage(text: str) -> None:
    with pytest.raises(CorruptionError):
        layout.decode_partition_metadata(text)


def test_properties_are_read_around_comments() -> None:
    values = {"cluster.id": "x=y", "node.id": "0"}
    text = "# c\n\n  ! c\n" + layout.encode_properties(values)
    assert layout.decode_properties(text) == values
    with pytest.raises(CorruptionError):
        layout.decode_properties("nonsense")


# Indexes


def test_offset_index_entries_are_relative_offset_and_position() -> None:
    index = OffsetIndex()
    index.add(10, 4100)
    index.add(25, 8300)
    assert index.encode() == struct.pack(">iiii", 10, 4100, 25, 8300)
    assert index.encode(1) == struct.pack(">ii", 25, 8300)
    assert OffsetIndex.decode(index.encode()).encode() == index.encode()


@pytest.mark.parametrize(
    ("offset", "position"), [(0, 0), (9, 0), (10, 4100), (24, 4100), (25, 8300), (99, 8300)]
)
def test_an_offset_is_found_at_or_after_the_position(offset: int, position: int) -> None:
    index = OffsetIndex()
    index.add(10, 4100)
    index.add(25, 8300)
    assert index.position(offset) == position


def test_time_index_entries_are_timestamp_and_relative_offset() -> None:
    index = TimeIndex()
    index.add(1000, 3)
    index.add(1000, 4)
    index.add(999, 5)
    index.add(2000, 9)
    assert index.encode() == struct.pack(">qiqi", 1000, 3, 2000, 9)
    assert TimeIndex.decode(index.encode()).last() == (2000, 9)
    assert [index.offset_before(t) for t in (999, 1000, 1001, 2001)] == [0, 0, 3, 9]


@pytest.mark.parametrize("data", [bytes(7), struct.pack(">iiii", 5, 10, 5, 20)])
def test_a_damaged_offset_index_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptionError):
        OffsetIndex.decode(data)


@pytest.mark.parametrize("data", [bytes(11), struct.pack(">qiqi", 5, 10, 4, 20)])
def test_a_damaged_time_index_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptionError):
        TimeIndex.decode(data)


def test_transaction_index_entries_have_kafkas_form() -> None:
    entries = [AbortedTransaction(7, 3, 9, 10), AbortedTransaction(8, 10, 10, 10)]
    data = layout.encode_aborted(entries)
    assert data == struct.pack(">hqqqqhqqqq", 0, 7, 3, 9, 10, 0, 8, 10, 10, 10)
    assert layout.decode_aborted(data) == entries


@pytest.mark.parametrize(
    "data",
    [
        bytes(33),
        struct.pack(">hqqqq", 1, 7, 3, 9, 10),
        struct.pack(">hqqqq", 0, 7, 9, 3, 10),
        struct.pack(">hqqqq", 0, 7, 3, 9, 10) * 2,
    ],
)
def test_a_damaged_transaction_index_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptionError):
        layout.decode_aborted(data)


# Producer snapshot


def test_the_snapshot_begins_with_kafkas_bytes() -> None:
    partition = Driver()
    partition.produce(7, 2, 10, 3, timestamp=1234)
    partition.produce_in_transaction(8, epoch=1, sequence=0)
    partition.mark(abort(8, epoch=1, coordinator_epoch=6))
    partition.produce_in_transaction(8, epoch=1, sequence=1, timestamp=99)
    partition.mark(abort(9, epoch=3))
    data = snapshot_of(partition.log)
    version, crc, count = struct.unpack_from(">hIi", data)
    assert (version, crc, count) == (1, crc32c(data[6:]), 3)
    entries = struct.iter_unpack(">qhiqiqiq", data[10 : 10 + 3 * 46])
    assert list(entries) == [
        (7, 2, 12, 2, 2, 1234, -1, -1),
        (8, 1, 1, 5, 0, 99, 6, 5),
        (9, 3, -1, -1, 0, -1, 1, -1),
    ]


def test_the_snapshot_keeps_whole_windows_and_what_comes_next() -> None:  # E4
    partition = Driver()
    for sequence in range(8):
        partition.produce(7, 0, sequence)
    partition.mark(abort(9, epoch=3))
    partition.produce_in_transaction(10)
    producers, highest, *_ = decode_snapshot(snapshot_of(partition.log))
    assert producers == dict(partition.log._state.producers)
    assert highest == 10
    assert len(producers[7].batches) == 5


def test_a_snapshot_of_kafka_itself_is_read() -> None:
    partition = Driver()
    for sequence in range(3):
        partition.produce(7, 0, sequence * 2, 2)
    data = snapshot_of(partition.log)[: 10 + 46]
    data = struct.pack(">hI", 1, crc32c(data[6:])) + data[6:]
    producers, highest, *_ = decode_snapshot(data)
    assert highest == 7
    assert producers[7].next_sequence == 6
    assert [tuple(batch)[:4] for batch in producers[7].batches] == [(4, 5, 4, 5)]


def test_the_first_sequence_in_a_snapshot_of_kafka_is_known() -> None:  # E4
    body = struct.pack(">iqhiqiqiq", 1, 0, 2, 0, 5, 0, 99, -1, -1)
    producers, highest, *_ = decode_snapshot(struct.pack(">hI", 1, crc32c(body)) + body)
    assert list(producers[0].batches) == [(0, 0, 5, 5, 99)]
    assert (producers[0].next_sequence, highest) == (1, 0)


def test_an_empty_snapshot_has_no_producers() -> None:
    empty = Snapshot(Producers(), -1)
    assert decode_snapshot(encode_snapshot(empty)) == empty


def test_every_cut_and_every_flipped_bit_of_a_snapshot_is_noticed() -> None:
    partition = Driver()
    partition.produce(7, 0, 0)
    data = snapshot_of(partition.log)
    damaged = [data[:size] for size in range(len(data))]
    damaged += [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(len(data))]
    for bytes_ in damaged:
        with pytest.raises(CorruptionError):
            decode_snapshot(bytes_)


@pytest.mark.parametrize(("count", "size"), [(-1, 46), (1, 45), (2, 46), (1 << 30, 46)])
def test_a_count_beyond_the_bytes_is_noticed_before_anything_is_made(count: int, size: int) -> None:
    body = struct.pack(">i", count) + bytes(size)
    with pytest.raises(CorruptionError, match=f"too short for its {count} producers"):
        decode_snapshot(struct.pack(">hI", 1, crc32c(body)) + body)


def test_a_snapshot_has_the_leader_epochs_below_it() -> None:  # F7
    epochs = (EpochStart(3, 70), EpochStart(1 << 30, 1 << 40))
    snapshot = Snapshot(Producers(), -1, sealed_at=80, epochs=epochs)
    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot


@pytest.mark.parametrize(("count", "size"), [(-1, 12), (1, 11), (2, 12), (1 << 30, 12)])
def test_a_count_of_epochs_beyond_the_bytes_is_noticed(count: int, size: int) -> None:
    body = struct.pack(">i4sq4si", 0, b"FLw1", 7, b"FLe1", count) + bytes(size)
    with pytest.raises(CorruptionError, match=f"too short for its {count} leader epochs"):
        decode_snapshot(struct.pack(">hI", 1, crc32c(body)) + body)


@pytest.mark.parametrize(("producer_id", "count"), [(8, 0), (7, 6), (7, -1)])
def test_a_window_that_cannot_be_is_damage(producer_id: int, count: int) -> None:
    entry = struct.pack(">qhiqiqiq", 7, 0, 0, 0, 0, 0, -1, -1)
    trailer = struct.pack(">4sqqib", b"FLw1", 7, producer_id, 1, count) + bytes(6 * 32)
    body = struct.pack(">i", 1) + entry + trailer
    with pytest.raises(CorruptionError, match="window"):
        decode_snapshot(struct.pack(">hI", 1, crc32c(body)) + body)
