"""The versioned log's own schema: fixed bytes, round trips, and damage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencelog.coordination.shard import LogRecord
from fencelog.coordination.versioned.records import (
    AppKey,
    Key,
    ProducerKey,
    RunKey,
    read_app,
    read_key,
    read_producer,
    read_run,
    write_app,
    write_key,
    write_producer,
    write_run,
)
from fencelog.coordination.versioned.state import App, Joined, Phase, Run
from fencelog.errors import CorruptionError
from fencelog.types import ProducerEpoch, ProducerId, TimestampMs, TopicPartition

int64s = st.integers(-(2**63), 2**63 - 1)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
partitions = st.frozensets(st.builds(TopicPartition, names, st.integers(0, 2**31 - 1)), max_size=5)
keys: st.SearchStrategy[Key] = st.one_of(
    st.builds(AppKey, names), st.builds(RunKey, names, names, names), st.builds(ProducerKey, int64s)
)
apps = st.builds(
    App,
    app=names,
    query_id=names,
    run_id=names,
    last_version=int64s,
    fingerprint=st.binary(max_size=40),
    incarnation=int64s,
    phase=st.sampled_from(Phase),
    version=int64s,
    timeout_ms=st.integers(0, 2**31 - 1),
    committing=st.frozensets(int64s, max_size=5),
    written=partitions,
    updated_ms=int64s,
    opened_ms=int64s,
)
producers = st.builds(
    Joined,
    producer_id=int64s,
    producer_epoch=st.integers(0, 2**15 - 1),
    app=names,
    incarnation=int64s,
    partitions=partitions,
)

JOINED = Joined(
    producer_id=ProducerId(5),
    producer_epoch=ProducerEpoch(0),
    app="etl",
    incarnation=3,
    partitions=frozenset({TopicPartition("out", 1)}),
)


def test_the_bytes_of_version_0_never_change() -> None:  # V8
    key = bytes.fromhex("0002 0000000000000005")
    value = (
        bytes.fromhex("0000 0003") + b"etl" + bytes.fromhex("0000000000000003 0000")
        + bytes.fromhex("00000001 0003") + b"out" + bytes.fromhex("00000001 00000001")
    )  # fmt: skip
    assert write_producer(JOINED) == LogRecord(key, value)
    run = Run(ordinal=7, since_ms=TimestampMs(-1), host="")
    assert read_run(bytes.fromhex("0000 0000000000000007")) == run


def test_the_bytes_of_a_run_of_version_1_never_change() -> None:  # V8
    run = Run(ordinal=7, since_ms=TimestampMs(8), host="h")
    assert write_run(RunKey("etl", "q", "r"), run) == LogRecord(
        bytes.fromhex("0001 0003") + b"etl" + b"\x00\x01q\x00\x01r",
        bytes.fromhex("0001 0000000000000007 0000000000000008 0001") + b"h",
    )


@given(keys)
def test_a_key_is_read_back(key: Key) -> None:
    assert read_key(write_key(key)) == key


@given(apps)
def test_an_app_is_read_back(app: App) -> None:
    record = write_app(app)
    assert record.value is not None
    assert read_key(record.key) == AppKey(app.app)
    assert read_app(app.app, record.value) == app


@given(producers)
def test_a_producer_is_read_back(joined: Joined) -> None:
    record = write_producer(joined)
    assert record.value is not None
    assert read_key(record.key) == ProducerKey(joined.producer_id)
    assert read_producer(joined.producer_id, record.value) == joined


@given(apps, st.data())
def test_a_value_cut_anywhere_is_damage(app: App, data: st.DataObject) -> None:
    value = write_app(app).value
    assert value is not None
    with pytest.raises(CorruptionError):
        read_app("etl", value[: data.draw(st.integers(0, len(value) - 1))])


@given(st.builds(Run, ordinal=int64s, since_ms=int64s, host=names))
def test_a_run_is_read_back(run: Run) -> None:
    value = write_run(RunKey("etl", "q", "r"), run).value
    assert value is not None
    assert read_run(value) == run


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_are_damage(data: bytes) -> None:
    for read in (
        lambda: read_key(data),
        lambda: read_app("etl", data),
        lambda: read_run(data),
        lambda: read_producer(ProducerId(1), data),
    ):
        try:
            read()
        except CorruptionError:
            continue


@pytest.mark.parametrize("value", [b"", b"\x00\x01", b"\x00\x00", b"\x00\x00" + bytes(9)])
def test_a_run_that_makes_no_sense_is_damage(value: bytes) -> None:
    with pytest.raises(CorruptionError):
        read_run(value)


def test_a_phase_of_the_future_is_damage() -> None:
    value = bytes.fromhex("0000 0000 0000 ffffffffffffffff 00000000 0000000000000000 09")
    with pytest.raises(CorruptionError):
        read_app("etl", value + bytes(40))
