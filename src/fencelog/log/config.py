"""The settings of one partition's log, under Kafka's topic config names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

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
    delete_retention_ms: int = _DAY_MS
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = INT64_MAX
    min_cleanable_dirty_ratio: float = 0.5
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
            if key not in TOPIC_KEYS:
                raise InvalidConfigError(key, "no such topic config")
            known = TOPIC_KEYS[key]
            try:
                value = known.parse(text)
            except ValueError as error:
                raise InvalidConfigError(key, f"{text!r}: {error}") from None
            if known.field is not None:
                fields[known.field] = value
        config = cls(**fields)
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
            raise InvalidConfigError("min.compaction.lag.ms", "above max.compaction.lag.ms")
        return config

    def to_topic_config(self) -> dict[str, str]:
        """Return every setting in force under its topic config name (DescribeConfigs)."""
        return {
            key: known.default if known.field is None else _to_text(getattr(self, known.field))
            for key, known in TOPIC_KEYS.items()
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


ConfigKind = Literal["boolean", "int", "long", "double", "list", "string"]


class TopicKey(NamedTuple):
    """A topic config that is known.

    Without a ``field`` it is known to Kafka's tools and libraries, which set it at creation; it
    tunes work that this broker does not do, changes no promise, and is shown as ``default``.
    """

    field: str | None
    parse: Callable[[str], Any]
    kind: ConfigKind
    default: str = ""


def _known(kind: ConfigKind, default: str, parse: Callable[[str], Any]) -> TopicKey:
    return TopicKey(None, parse, kind, default)


_LONG = _integer(0, INT64_MAX)
_TRUTH = _one_of("true", "false")

TOPIC_KEYS: Mapping[str, TopicKey] = MappingProxyType(
    {
        "segment.bytes": TopicKey("segment_bytes", _integer(1024, INT32_MAX), "int"),
        "segment.ms": TopicKey("segment_ms", _integer(1, INT64_MAX), "long"),
        "segment.index.bytes": TopicKey("segment_index_bytes", _integer(8, INT32_MAX), "int"),
        "index.interval.bytes": TopicKey("index_interval_bytes", _integer(0, INT32_MAX), "int"),
        "max.message.bytes": TopicKey("max_message_bytes", _integer(0, INT32_MAX), "int"),
        "message.timestamp.type": TopicKey(
            "message_timestamp_type", _one_of("CreateTime", "LogAppendTime"), "string"
        ),
        "message.timestamp.before.max.ms": TopicKey(
            "message_timestamp_before_max_ms", _LONG, "long"
        ),
        "message.timestamp.after.max.ms": TopicKey("message_timestamp_after_max_ms", _LONG, "long"),
        "retention.ms": TopicKey("retention_ms", _integer(-1, INT64_MAX), "long"),
        "retention.bytes": TopicKey("retention_bytes", _integer(-1, INT64_MAX), "long"),
        "cleanup.policy": TopicKey("cleanup_policy", _cleanup_policy, "list"),
        "delete.retention.ms": TopicKey("delete_retention_ms", _LONG, "long"),
        "min.compaction.lag.ms": TopicKey("min_compaction_lag_ms", _LONG, "long"),
        "max.compaction.lag.ms": TopicKey("max_compaction_lag_ms", _integer(1, INT64_MAX), "long"),
        "min.cleanable.dirty.ratio": TopicKey("min_cleanable_dirty_ratio", _fraction, "double"),
        "min.insync.replicas": TopicKey("min_insync_replicas", _in_sync_replicas, "int"),
        # fencelog's own.
        "group.fence": TopicKey("group_fence", _one_of("off", "required"), "string"),
        # The broker never opens a batch to store it, so it never changes a codec.
        "compression.type": _known("string", "producer", _one_of("producer")),
        "file.delete.delay.ms": _known("long", "60000", _LONG),
        "flush.messages": _known("long", str(INT64_MAX), _LONG),
        "flush.ms": _known("long", str(INT64_MAX), _LONG),
        "preallocate": _known("boolean", "false", _TRUTH),
        "segment.jitter.ms": _known("long", "0", _LONG),
        "unclean.leader.election.enable": _known("boolean", "false", _TRUTH),
    }
)
"""Every topic config that may be set, by Kafka's name."""
