"""The settings of one partition's log, under Kafka's topic config names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fencelog.errors import FencelogError
from fencelog.settings.fields import bound, of_topic, shown
from fencelog.settings.names import unknown_topic_key
from fencelog.settings.table import TOPIC_KEYS
from fencelog.wire.batch import Compression

TimestampKind = Literal["CreateTime", "LogAppendTime"]
OwnershipKind = Literal["off", "if-owned", "required"]
ReadOwnership = Literal["off", "required"]
GroupFence = Literal["off", "required"]
CompressionType = Literal["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"]
_CODECS: Mapping[CompressionType, Compression] = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}


class InvalidConfigError(FencelogError):
    """A topic config that is unknown or has no such value; names the key."""

    def __init__(self, key: str, reason: str, text: str | None = None) -> None:
        """Keep the key beside the message, which has the ``text`` of a value that is refused."""
        super().__init__(f"{key}: {reason}" if text is None else f"{key}={text!r}: {reason}")
        self.key = key


@dataclass(frozen=True, kw_only=True, slots=True)
class LogConfig:
    """What governs one log; names, defaults and ranges are those of the table of settings."""

    segment_bytes: int = of_topic("segment.bytes")
    segment_ms: int = of_topic("segment.ms")
    segment_index_bytes: int = of_topic("segment.index.bytes")
    index_interval_bytes: int = of_topic("index.interval.bytes")
    max_message_bytes: int = of_topic("max.message.bytes")
    message_timestamp_type: TimestampKind = of_topic("message.timestamp.type")
    message_timestamp_before_max_ms: int = of_topic("message.timestamp.before.max.ms")
    message_timestamp_after_max_ms: int = of_topic("message.timestamp.after.max.ms")
    retention_ms: int = of_topic("retention.ms")
    retention_bytes: int = of_topic("retention.bytes")
    cleanup_policy: frozenset[str] = of_topic("cleanup.policy")
    delete_retention_ms: int = of_topic("delete.retention.ms")
    min_compaction_lag_ms: int = of_topic("min.compaction.lag.ms")
    max_compaction_lag_ms: int = of_topic("max.compaction.lag.ms")
    min_cleanable_dirty_ratio: float = of_topic("min.cleanable.dirty.ratio")
    group_fence: GroupFence = of_topic("group.fence")
    """Whether offsets on this topic are taken from members only, where a group has any (E8)."""
    ownership: OwnershipKind = of_topic("ownership")
    """Whose writes are accepted (O8)."""
    ownership_read: ReadOwnership = of_topic("ownership.read")
    min_insync_replicas: int = of_topic("min.insync.replicas")
    compression_type: CompressionType = of_topic("compression.type")

    @property
    def codec(self) -> Compression | None:
        """The codec that every stored batch has; None if each keeps its producer's."""
        return _CODECS.get(self.compression_type)

    @classmethod
    def from_topic_config(cls, values: Mapping[str, str]) -> "LogConfig":
        """Return the settings of a topic's config strings, defaults where it says nothing.

        Raises InvalidConfigError for an unknown key or an unusable value, so that a typing error is
        answered at creation and not found out by lost data.
        """
        changes: dict[str, Any] = {}
        for key, text in values.items():
            if key not in TOPIC_KEYS:
                raise InvalidConfigError(key, unknown_topic_key(key))
            try:
                value = TOPIC_KEYS[key].kind.parse(text)
            except ValueError as error:
                raise InvalidConfigError(key, str(error), text) from None
            if key in _FIELDS:
                changes[_FIELDS[key]] = value
        config = cls(**changes)
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
            raise InvalidConfigError("min.compaction.lag.ms", "above max.compaction.lag.ms")
        return config

    def to_topic_config(self) -> dict[str, str]:
        """Return every setting in force under its topic config name."""
        texts = shown(self)
        return {
            key: texts.get(setting.key, setting.default_text) for key, setting in TOPIC_KEYS.items()
        }


_FIELDS = {each.setting.topic_key: each.name for each in bound(LogConfig)}
"""By topic config name."""
