"""The settings of one stream, under their topic config names (R3)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fencelog.coordination.streams.rules import SegmentLimits
from fencelog.settings.fields import bound, of_topic
from fencelog.settings.stream_table import STREAM_KEYS


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamSettings:
    """How many segments may be open, and when the broker resizes the stream by itself."""

    segments_min: int = of_topic("stream.segments.min")
    segments_max: int = of_topic("stream.segments.max")
    events_per_s: int = of_topic("stream.rate.events.per.segment")
    """Target of one segment; 0 for none."""
    kbytes_per_s: int = of_topic("stream.rate.kbytes.per.segment")
    """Target of one segment in KiB; 0 for none."""
    cooldown_ms: int = of_topic("stream.cooldown.ms")

    @property
    def limits(self) -> SegmentLimits:
        """How many segments may be open."""
        return SegmentLimits(self.segments_min, self.segments_max)

    @property
    def has_policy(self) -> bool:
        """Whether the broker resizes the stream by itself."""
        return self.events_per_s > 0 or self.kbytes_per_s > 0

    def problem(self) -> str | None:
        """Return which settings do not go together, None if all do."""
        if self.segments_min > self.segments_max:
            return (
                f"stream.segments.min={self.segments_min}: above stream.segments.max="
                f"{self.segments_max}"
            )
        return None

    @classmethod
    def of_topic_config(cls, settings: Mapping[str, str]) -> "StreamSettings":
        """Return the settings of a topic's valid config strings, defaults where it says nothing."""
        values: dict[str, Any] = {
            each.name: each.setting.kind.parse(settings[each.setting.topic_key])
            for each in _FIELDS
            if each.setting.topic_key in settings
        }
        return cls(**values)


_FIELDS = bound(StreamSettings)
assert {each.setting.topic_key for each in _FIELDS} == STREAM_KEYS
