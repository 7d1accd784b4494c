"""A stream's segments are part of its topic's stored form (R1)."""

import json

import pytest

from fencelog.broker.metadata.catalog import Topic
from fencelog.coordination.streams.model import Stream
from fencelog.coordination.streams.rules import created, split
from fencelog.errors import CorruptionError
from fencelog.types import TopicId


def _stream() -> Stream:
    stream = created(2)
    assert isinstance(stream, Stream)
    changed = split(stream, 0)
    assert isinstance(changed, Stream)
    return changed


def _topic(stream: Stream | None) -> Topic:
    count = 1 if stream is None else len(stream.segments)
    return Topic(
        name="orders", topic_id=TopicId(b"i" * 16), partitions=count, settings={}, stream=stream
    )


def test_a_stream_is_decoded_as_it_was_encoded() -> None:
    """Ranges, states and predecessors are stored with the topic."""
    # R1
    topic = _topic(_stream())

    assert Topic.decode("orders", topic.encode()) == topic


def test_a_topic_that_is_no_stream_is_stored_as_before() -> None:
    """Brokers that know no streams read it, and what they wrote is read."""
    stored = _topic(None).encode()

    assert "stream" not in json.loads(stored)
    assert Topic.decode("orders", stored).stream is None


def test_segments_that_do_not_cover_the_hash_space_are_refused() -> None:
    """A stream of the stored form keeps every key, or is not loaded."""
    # R1
    stream = _stream()
    fields = json.loads(_topic(stream).encode())
    del fields["stream"][1]

    with pytest.raises(CorruptionError, match="topic orders: the open segments end at"):
        Topic.decode("orders", json.dumps(fields).encode())


def test_a_stream_with_other_segments_than_partitions_is_refused() -> None:
    """Each segment is the partition of the same index."""
    # R1
    fields = json.loads(_topic(_stream()).encode())
    fields["partitions"] = 3

    with pytest.raises(CorruptionError, match="topic orders: 3 partitions and 4 segments"):
        Topic.decode("orders", json.dumps(fields).encode())
