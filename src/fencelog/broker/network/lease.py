"""For how long a broker of a cluster may serve requests."""

from typing import Protocol

from fencelog.types import Instant


class Lease(Protocol):
    """The lease of this broker's registration in its cluster.

    Once it may have ended, another broker may lead this one's partitions and have newer data.
    """

    @property
    def deadline(self) -> Instant:
        """When it may have ended."""
        ...
