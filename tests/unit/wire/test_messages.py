"""Every generated message, in each of its versions, against kafka-python and against itself."""

import contextlib
from collections.abc import Callable

import pytest

from fencelog.errors import WireError
from fencelog.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from fencelog.wire.messages.elect_leaders import ElectLeadersRequest
from fencelog.wire.messages.metadata import MetadataRequest
from tests.unit.wire.message_values import KAFKA_NAMES, OWN_NAMES, Kind

EXAMPLES = 8


@pytest.mark.parametrize("name", KAFKA_NAMES)
def test_each_version_is_written_as_kafka_python_writes_it(name: str) -> None:
    kind = Kind(name)
    for version in kind.versions:
        for message in kind.examples(version, EXAMPLES):
            if isinstance(message, ElectLeadersRequest):
                message.leader = -1  # fencelog's own field, which is left out then
            expected = bytes(kind.likeness(message, version).encode(version=version))
            assert message.write(version) == expected, (version, message)


@pytest.mark.parametrize("name", KAFKA_NAMES + OWN_NAMES)
def test_each_version_is_read_back_equal(name: str) -> None:
    kind = Kind(name)
    for version in kind.versions:
        for message in kind.examples(version, EXAMPLES):
            assert kind.message.read(message.write(version), version) == message, version


@pytest.mark.parametrize("name", KAFKA_NAMES + OWN_NAMES)
def test_every_truncation_is_a_wire_error(name: str) -> None:
    kind = Kind(name)
    for version in kind.versions:
        message = kind.examples(version, 1)[0]
        data = message.write(version)
        for size in range(len(data)):
            with pytest.raises(WireError):
                kind.message.read(data[:size], version)


@pytest.mark.parametrize("name", KAFKA_NAMES + OWN_NAMES)
def test_bytes_after_the_end_are_ignored(name: str) -> None:
    kind = Kind(name)
    for version in kind.versions:
        message = kind.examples(version, 1)[0]
        assert kind.message.read(message.write(version) + b"\1\0\0", version) == message


def test_librdkafkas_request_for_all_topics_is_read_with_its_surplus_bytes() -> None:
    # Recorded from librdkafka 2.16: it fills an array's count of four bytes where one is due.
    recorded = bytes.fromhex("00 00 00 00 01 00 00")
    assert MetadataRequest.read(recorded, 12).topics is None


@pytest.mark.parametrize("name", KAFKA_NAMES + OWN_NAMES)
def test_any_changed_byte_gives_a_message_or_a_wire_error(name: str) -> None:
    """A message is whole: it can be written, and is the same when it is read again."""
    kind = Kind(name)
    for version in kind.versions:
        data = kind.examples(version, 1)[0].write(version)
        for position in range(min(len(data), 200)):
            for byte in (0x00, 0x7F, 0x80, 0xFF):
                broken = data[:position] + bytes([byte]) + data[position + 1 :]
                with contextlib.suppress(WireError):
                    # Compared as bytes: not a number equals nothing.
                    written = kind.message.read(broken, version).write(version)
                    assert kind.message.read(written, version).write(version) == written


@pytest.mark.parametrize("name", KAFKA_NAMES + OWN_NAMES)
def test_the_defaults_are_a_message_of_every_version(name: str) -> None:
    kind = Kind(name)
    for version in kind.versions:
        message = kind.message()
        assert kind.message.read(message.write(version), version) == message, version


@pytest.mark.parametrize(
    ("version", "data"),
    [
        (0, b"\x7f\xff\xff\xff"),  # two billion topics, no byte of them
        (9, b"\xff\xff\xff\xff\x0f"),
        (9, b"\xff\xff\xff\xff\xff\xff\xff"),
    ],
)
def test_an_array_longer_than_the_rest_is_refused_before_anything_is_allocated(
    version: int, data: bytes, peak_of: Callable[[Callable[[], object]], int]
) -> None:
    def refused() -> None:
        with pytest.raises(WireError):
            MetadataRequest.read(data, version)

    assert peak_of(refused) < 100_000


def test_a_version_that_does_not_exist_is_a_wire_error() -> None:
    with pytest.raises(WireError, match="no version 99"):
        MetadataRequest.read(b"", 99)


def test_a_null_array_is_not_an_empty_one() -> None:
    everything = MetadataRequest.read(MetadataRequest(topics=None).write(12), 12)
    nothing = MetadataRequest.read(MetadataRequest(topics=[]).write(12), 12)
    assert (everything.topics, nothing.topics) == (None, [])


def test_null_is_refused_where_a_version_has_no_null() -> None:
    with pytest.raises(WireError, match="null"):
        MetadataRequest.read(b"\xff\xff\xff\xff", 0)


def test_unknown_tagged_fields_are_skipped() -> None:
    written = MetadataRequest(topics=[]).write(12)
    assert written[-1:] == b"\0"
    extended = written[:-1] + b"\x02" + b"\x07\x03abc" + b"\x09\x00"
    assert MetadataRequest.read(extended, 12) == MetadataRequest(topics=[])


def test_a_message_shows_the_call_that_makes_it() -> None:
    topic = CreatableTopic(name="orders", num_partitions=3)
    assert repr(topic) == (
        "CreatableTopic(name='orders', num_partitions=3, replication_factor=0, "
        "assignments=[], configs=[])"
    )


@pytest.mark.parametrize("version", [2, 7])
def test_parts_that_are_encoded_already_are_written_as_the_message_would(version: int) -> None:
    topics = [CreatableTopic(name=name, num_partitions=3) for name in "abc"]
    encoded = [topic.encoded(version) for topic in topics]
    expected = CreateTopicsRequest(topics=topics).write(version)
    assert CreateTopicsRequest(topics=encoded).write(version) == expected


def test_two_messages_never_share_a_default_list() -> None:
    first, second = CreateTopicsRequest(), CreateTopicsRequest()
    first.topics.append(CreatableTopic(name="orders"))
    assert second.topics == []


def test_messages_of_two_classes_are_never_equal() -> None:
    assert CreateTopicsRequest() != MetadataRequest()
