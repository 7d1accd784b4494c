"""Transaction markers, as Kafka spells them."""

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given, settings
from hypothesis import strategies as st

from fencelog.errors import WireError
from fencelog.types import LeaderEpoch, Offset
from fencelog.wire.batch import check_crc, read_header
from fencelog.wire.control import (
    Marker,
    OwnershipRecord,
    Seal,
    last_seal,
    marker_batch,
    ownership_batch,
    read_control,
    read_marker,
    seal_batch,
)
from fencelog.wire.records import RecordToWrite, build_batch, read_records


def marker(*, commit: bool = True) -> bytearray:
    return marker_batch(7, 3, commit=commit, coordinator_epoch=5, timestamp_ms=1000)


def test_a_marker_is_a_transactional_control_batch_of_one_record_without_sequence() -> None:
    header = read_header(marker())
    assert header.is_control
    assert header.is_transactional
    assert header.attributes == 0x30
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, -1)
    assert (header.record_count, header.next_offset) == (1, 1)
    assert check_crc(marker())


@pytest.mark.parametrize(("commit", "kind"), [(True, "0001"), (False, "0000")])
def test_a_markers_key_and_value_are_kafkas(commit: bool, kind: str) -> None:
    (record,) = read_records(marker(commit=commit))
    assert record.key is not None
    assert record.value is not None
    assert (record.key.hex(), record.value.hex()) == ("0000" + kind, "000000000005")


def test_aiokafka_reads_a_marker_as_a_control_batch() -> None:
    read = DefaultRecordBatch(bytes(marker()))
    assert read.is_control_batch
    assert read.is_transactional
    assert read.validate_crc()
    assert [(record.key, record.timestamp) for record in read] == [(b"\0\0\0\x01", 1000)]


@settings(deadline=None)
@given(
    st.integers(0, (1 << 63) - 1),
    st.integers(0, (1 << 15) - 1),
    st.booleans(),
    st.integers(0, (1 << 31) - 1),
)
def test_a_marker_is_read_back(
    producer_id: int, producer_epoch: int, commit: bool, coordinator_epoch: int
) -> None:
    written = marker_batch(
        producer_id,
        producer_epoch,
        commit=commit,
        coordinator_epoch=coordinator_epoch,
        timestamp_ms=1,
    )
    assert read_marker(written) == Marker(commit, coordinator_epoch)  # E17
    assert read_header(written).producer_id == producer_id


def control(key: bytes | None, value: bytes | None) -> bytearray:
    return build_batch([RecordToWrite(key, value, 1)], control=True)


@pytest.mark.parametrize(
    "batch",
    [
        build_batch([RecordToWrite(b"\0\0\0\1", b"\0\0\0\0\0\5", 1)]),
        control(b"\0\0\0\2", b"\0\0\0\0\0\5"),
        control(b"\0\0\x27\x10", b"\0\0\0\0\0\5"),
        control(b"\0\0\0", b"\0\0\0\0\0\5"),
        control(b"\0\0\0\1", b"\0\0\0"),
        control(None, b"\0\0\0\0\0\5"),
        control(b"\0\0\0\1", None),
        marker()[:-8],
        b"",
    ],
    ids=[
        "data", "another type", "a type of ours", "short key", "short value", "no key", "no value",
        "cut", "nothing",
    ],
)  # fmt: skip
def test_what_is_no_marker_is_a_wire_error(batch: bytes) -> None:
    with pytest.raises(WireError):
        read_marker(batch)


def test_fields_that_a_later_version_appends_are_not_looked_at() -> None:
    longer = control(b"\0\1\0\1more", b"\0\1\0\0\0\5more")
    assert read_marker(longer) == Marker(True, 5)


# Ownership


OWNED = OwnershipRecord("etl", 17, "session", "own/orders~17", "host-1", True, 99)


def test_an_ownership_record_is_a_control_batch_of_nobody() -> None:  # O9
    batch = ownership_batch(OWNED, 1000)
    header = read_header(batch)
    assert header.attributes == 0x20
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert (header.record_count, header.next_offset, header.max_timestamp) == (1, 1, 1000)
    assert check_crc(batch)
    (record,) = read_records(batch)
    assert record.key is not None
    assert record.key.hex() == "00002710"  # exactly version and type: clients look no further


def test_aiokafka_reads_an_ownership_record_as_a_control_batch() -> None:  # O9
    read = DefaultRecordBatch(bytes(ownership_batch(OWNED, 1000)))
    assert read.is_control_batch
    assert not read.is_transactional
    assert [record.key for record in read] == [b"\0\0\x27\x10"]


TEXT = st.text(max_size=200)


@settings(deadline=None)
@given(
    st.builds(
        OwnershipRecord,
        st.none() | TEXT,
        st.integers(0, (1 << 63) - 1),
        TEXT,
        st.none() | TEXT,
        TEXT,
        st.booleans(),
        st.integers(0, (1 << 63) - 1),
    )
)
def test_an_ownership_record_is_read_back(record: OwnershipRecord) -> None:
    assert read_control(ownership_batch(record, 1)) == record
    with pytest.raises(WireError):
        read_marker(ownership_batch(record, 1))


def test_control_batches_of_other_kinds_only_take_offsets() -> None:
    assert read_control(marker()) == Marker(True, 5)
    assert read_control(control(b"\0\0\x27\x12", b"\0\0\0\0\0\5")) is None
    (record,) = read_records(ownership_batch(OWNED, 1))
    assert record.value is not None
    for size in range(len(record.value)):
        assert read_control(control(b"\0\0\x27\x10", record.value[:size])) is None
    longer = control(b"\0\1\x27\x10", b"\0\1" + record.value[2:] + b"more")
    assert read_control(longer) == OWNED


# Seals


def test_a_seal_is_a_control_batch_of_nobody_that_takes_one_offset() -> None:  # R2
    batch = seal_batch(1000)
    header = read_header(batch)
    assert header.attributes == 0x20
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert (header.record_count, header.next_offset, header.max_timestamp) == (1, 1, 1000)
    assert check_crc(batch)
    (record,) = read_records(batch)
    assert record.key is not None
    assert record.value is not None
    assert (record.key.hex(), record.value.hex()) == ("00002711", "0000")
    assert read_control(batch) == Seal()
    assert read_control(control(b"\0\1\x27\x11more", b"\0\1more")) == Seal()
    with pytest.raises(WireError):
        read_marker(batch)


def test_a_seal_without_a_file_takes_all_offsets_up_to_the_end_of_its_log() -> None:  # R1
    batch = last_seal(Offset(7), Offset(12), LeaderEpoch(3))
    header = read_header(batch)
    assert check_crc(batch)
    assert (header.base_offset, header.next_offset, header.leader_epoch) == (7, 12, 3)
    assert (header.record_count, header.max_timestamp) == (1, -1)
    assert read_control(batch) == Seal()
    read = DefaultRecordBatch(bytes(batch))
    assert (read.is_control_batch, read.next_offset) == (True, 12)


def test_aiokafka_reads_a_seal_as_a_control_batch() -> None:  # R2
    read = DefaultRecordBatch(bytes(seal_batch(1000)))
    assert read.is_control_batch
    assert not read.is_transactional
    assert [record.key for record in read] == [b"\0\0\x27\x11"]
