"""What the client says of streams: plain frozen values, no wire messages."""

from dataclasses import dataclass
from functools import cached_property

from fencelog.coordination.streams.model import Stream, StreamSegment
from fencelog.types import TopicId


@dataclass(frozen=True, kw_only=True)
class StreamDescription:
    """A stream and all segments that it has and had, by index (R1).

    ``StreamSegment`` says what is known of one; ``stream`` answers which segment replaced which,
    and which one a hash belongs to.
    """

    name: str
    topic_id: TopicId
    segments: tuple[StreamSegment, ...]

    @cached_property
    def stream(self) -> Stream:
        """The segments as the rules of streams see them."""
        return Stream(self.segments)
