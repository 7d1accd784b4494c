"""The role of a replica, which decides which offsets are committed.

In Kafka a leader counts its in-sync replicas, and a follower learns the high watermark from its
leader. The role is an object, so a replica that changes its role keeps no state of the old one.
"""

from typing import Protocol

from fencelog.types import Offset


class Role(Protocol):
    """The current role of a replica."""

    def flushed(self, end_offset: Offset) -> Offset:
        """Everything below ``end_offset`` is durable here; return the high watermark (F2)."""
        ...


class Alone:
    """The only replica: what is durable here is committed (F2)."""

    __slots__ = ()

    def flushed(self, end_offset: Offset) -> Offset:
        """Return the end of what is durable here."""
        return end_offset
