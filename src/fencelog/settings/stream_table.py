"""The settings of streams: of the policy that resizes them, and of what it may not pass (R3).

They are a topic's own: there is no default in the broker, and a topic that is no stream has none.
"""

from fencelog.settings.kinds import INT32_MAX, INT64_MAX, MINUTE_MS, Whole
from fencelog.settings.setting import topic

SEGMENTS_MAX = 10_000
"""Segments that a stream may ever have: all of them stay in its metadata."""

STREAM_SETTINGS = (
    topic(
        "stream.segments.min",
        "",
        Whole(1, SEGMENTS_MAX),
        1,
        "fewest open segments: no merge goes below",
    ),
    topic(
        "stream.segments.max",
        "",
        Whole(1, SEGMENTS_MAX),
        SEGMENTS_MAX,
        "most open segments: no split goes above",
    ),
    topic(
        "stream.rate.events.per.segment",
        "",
        Whole(0, INT32_MAX),
        0,
        "records a second above which the broker splits a segment; 0: it never does because of "
        "their number",
    ),
    topic(
        "stream.rate.kbytes.per.segment",
        "",
        Whole(0, INT32_MAX),
        0,
        "KiB a second, as stored, above which the broker splits a segment; 0: it never does "
        "because of their size",
    ),
    topic(
        "stream.cooldown.ms",
        "",
        Whole(1, INT64_MAX, "ms"),
        10 * MINUTE_MS,
        "for how long the broker resizes a stream no more after a resize",
    ),
)
"""Without a rate the broker resizes a stream only when it is asked to."""

STREAM_KEYS = frozenset(each.topic_key for each in STREAM_SETTINGS)
