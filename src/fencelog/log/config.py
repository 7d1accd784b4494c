"""The settings of one partition's log, under Kafka's topic config names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fencelog.errors import FencelogError

INT64_MAX = (1 << 63) - 1
INT32_MAX = (1 << 31) - 1
_DAY_MS = 24 * 60 * 60 * 1000

TimestampKind = Literal["CreateTime", "LogAppendTime"]
GroupFence = Literal["off", "required"]


class InvalidConfigError(FencelogError):
    """A topic config that is unknown or has no such value; names the key."""

    def __init__(self, key: str, reason: str) -> None:
        """Keep the key beside the text."""
        super().__init__(f"{key}: {reason}")
        self.key = key


@dataclass(frozen=True, kw_only=True, slots=True)
class LogConfig:
    """What governs one log; the defaults are Kafka's."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * _DAY_MS
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    max_message_bytes: int = 1_048_588
    message_timestamp_type: TimestampKind = "CreateTime"
    message_timestamp_before_max_ms: int = INT64_MAX
    message_timestamp_after_max_ms: int = 60 * 60 * 1000
    retention_ms: int = 7 * _DAY_MS
    retention_bytes: int = -1
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    min_insync_replicas: int = 1
    group_fence: GroupFence = "off"
    """Whether offsets on this topic are taken from members only, where a group has any (E8)."""

    @classmethod
    def from_topic_config(cls, values: Mapping[str, str]) -> "LogConfig":
        """Return the settings of a topic's config strings, defaults where it says nothing.

        Raises InvalidConfigError for an unknown key or an unusable value, so that a typing error is
        answered at creation and not found out by lost data.
        """
        fields: dict[str, Any] = {}
        for key, text in values.items():
            if key not in _KEYS:
                raise InvalidConfigError(key, "no such topic config")
            field, parse = _KEYS[key]
            try:
                value = parse(text)
            except ValueError as error:
                raise InvalidConfigError(key, f"{text!r}: {error}") from None
            if field is not None:
                fields[field] = value
        return cls(**fields)

    def to_topic_config(self) -> dict[str, str]:
        """Return every setting in force under its topic config name (DescribeConfigs)."""
        return {
            key: _to_text(getattr(self, field))
            for key, (field, _) in _KEYS.items()
            if field is not None
        }


def _to_text(value: object) -> str:
    return ",".join(sorted(value)) if isinstance(value, frozenset) else str(value)


def _integer(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError(f"not between {low} and {high}")
        return value

    return parse


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"not one of {', '.join(allowed)}")
        return text

    return parse


def _cleanup_policy(text: str) -> frozenset[str]:
    policies = frozenset(part.strip() for part in text.split(","))
    if not policies <= {"delete", "compact"}:
        raise ValueError("not delete, compact or both")
    return policies


def _in_sync_replicas(text: str) -> int:
    if int(text) != 1:
        raise ValueError("a single broker holds one replica of each partition")
    return 1


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError("not between 0 and 1")
    return value


_Parse = Callable[[str], Any]
_LONG = _integer(0, INT64_MAX)

# Keys without a field are known to Kafka's tools and libraries, which set them at creation; they
# tune work that this broker does not do, and change no promise.
_KEYS: dict[str, tuple[str | None, _Parse]] = {
    "segment.bytes": ("segment_bytes", _integer(1024, INT32_MAX)),
    "segment.ms": ("segment_ms", _integer(1, INT64_MAX)),
    "segment.index.bytes": ("segment_index_bytes", _integer(8, INT32_MAX)),
    "index.interval.bytes": ("index_interval_bytes", _integer(0, INT32_MAX)),
    "max.message.bytes": ("max_message_bytes", _integer(0, INT32_MAX)),
    "message.timestamp.type": (
        "message_timestamp_type",
        _one_of("CreateTime", "LogAppendTime"),
    ),
    "message.timestamp.before.max.ms": ("message_timestamp_before_max_ms", _LONG),
    "message.timestamp.after.max.ms": ("message_timestamp_after_max_ms", _LONG),
    "retention.ms": ("retention_ms", _integer(-1, INT64_MAX)),
    "retention.bytes": ("retention_bytes", _integer(-1, INT64_MAX)),
    "cleanup.policy": ("cleanup_policy", _cleanup_policy),
    "min.insync.replicas": ("min_insync_replicas", _in_sync_replicas),
    # fencelog's own.
    "group.fence": ("group_fence", _one_of("off", "required")),
    # The broker never opens a batch, so it never changes a codec.
    "compression.type": (None, _one_of("producer")),
    "delete.retention.ms": (None, _LONG),
    "file.delete.delay.ms": (None, _LONG),
    "flush.messages": (None, _LONG),
    "flush.ms": (None, _LONG),
    "max.compaction.lag.ms": (None, _LONG),
    "min.compaction.lag.ms": (None, _LONG),
    "min.cleanable.dirty.ratio": (None, _fraction),
    "preallocate": (None, _one_of("true", "false")),
    "segment.jitter.ms": (None, _LONG),
    "unclean.leader.election.enable": (None, _one_of("true", "false")),
}
