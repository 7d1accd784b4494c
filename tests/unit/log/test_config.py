"""Topic configs become a log's settings, or a clear refusal."""

import pytest

from fencelog.log.config import InvalidConfigError, LogConfig
from fencelog.wire.batch import Compression


def test_nothing_set_means_kafkas_defaults() -> None:
    config = LogConfig.from_topic_config({})
    assert config == LogConfig()
    assert (config.segment_bytes, config.max_message_bytes) == (1 << 30, 1_048_588)


@pytest.mark.parametrize(
    ("key", "text", "field", "value"),
    [
        ("segment.bytes", "2048", "segment_bytes", 2048),
        ("segment.ms", "1", "segment_ms", 1),
        ("max.message.bytes", "10", "max_message_bytes", 10),
        ("message.timestamp.type", "LogAppendTime", "message_timestamp_type", "LogAppendTime"),
        ("retention.ms", "-1", "retention_ms", -1),
        ("cleanup.policy", "compact,delete", "cleanup_policy", frozenset({"compact", "delete"})),
    ],
)
def test_a_key_sets_its_field(key: str, text: str, field: str, value: object) -> None:
    config = LogConfig.from_topic_config({key: text})
    assert getattr(config, field) == value
    assert config.to_topic_config()[key] == text


def test_described_settings_parse_to_the_same_settings() -> None:
    config = LogConfig(segment_bytes=4096, cleanup_policy=frozenset({"compact"}))
    assert LogConfig.from_topic_config(config.to_topic_config()) == config


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("retention.millis", "1"),
        ("segment.bytes", "1023"),
        ("segment.bytes", "many"),
        ("segment.bytes", str(1 << 31)),
        ("message.timestamp.type", "Now"),
        ("cleanup.policy", "shred"),
        ("compression.type", "brotli"),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("min.insync.replicas", "0"),
        ("retention.ms", ""),
        ("remote.storage.enable", "true"),
        ("log.retention.ms", "1"),
        ("compression.gzip.level", "10"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(key: str, text: str) -> None:
    with pytest.raises(InvalidConfigError, match=key) as refusal:
        LogConfig.from_topic_config({key: text})
    assert refusal.value.key == key


def test_a_refusal_says_what_would_do() -> None:
    with pytest.raises(InvalidConfigError, match=r"segment\.bytes.*1024"):
        LogConfig.from_topic_config({"segment.bytes": "1023"})


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("compression.type", "producer"),
        ("min.cleanable.dirty.ratio", "0.5"),
        ("flush.ms", "1000"),
        ("preallocate", "false"),
        ("min.insync.replicas", "1"),
        ("remote.storage.enable", "false"),
        ("remote.log.copy.disable", "false"),
        ("local.retention.ms", "-2"),
        ("local.retention.bytes", "-2"),
        ("compression.gzip.level", "-1"),
        ("compression.lz4.level", "9"),
        ("compression.zstd.level", "3"),
        ("leader.replication.throttled.replicas", ""),
        ("follower.replication.throttled.replicas", "*"),
        ("unclean.leader.election.enable", "false"),
    ],
)
def test_settings_of_kafkas_libraries_at_creation_are_accepted(key: str, text: str) -> None:
    assert LogConfig.from_topic_config({key: text}) == LogConfig()


def test_the_codec_is_that_of_the_compression_type() -> None:
    codecs = {
        text: LogConfig.from_topic_config({"compression.type": text}).codec
        for text in ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
    }
    assert codecs == {
        "producer": None,
        "uncompressed": Compression.NONE,
        "gzip": Compression.GZIP,
        "snappy": Compression.SNAPPY,
        "lz4": Compression.LZ4,
        "zstd": Compression.ZSTD,
    }
