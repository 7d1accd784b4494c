"""What a replica is to its partition: it decides which offsets are committed.

Kafka's leader counts the replicas in sync, and a follower is told by its leader. The role is an
object, so that a replica that changes its role takes on no state of the one it had.
"""

from typing import Protocol

from fencelog.types import Offset


class Role(Protocol):
    """What a replica is for its partition at the moment."""

    def flushed(self, end_offset: Offset) -> Offset:
        """All below ``end_offset`` is durable on this replica; return the high watermark (F2)."""
        ...


class Alone:
    """The only replica: what is durable here is committed, since nobody else acknowledges (F2)."""

    __slots__ = ()

    def flushed(self, end_offset: Offset) -> Offset:
        """The high watermark is the end of what is durable here."""
        return end_offset
