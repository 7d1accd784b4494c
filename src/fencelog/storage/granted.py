"""The numbers that a cluster's metadata grant once: producer ids (E7), coordinator epochs (E17)."""

from typing import NamedTuple


class Granted(NamedTuple):
    """What was granted, as far as is known."""

    producer_ids: int = 0
    """The producer ids below this one."""
    coordinator_epoch: int = -1
    """The highest of any shard."""

    def and_also(self, other: "Granted") -> "Granted":
        """Return what either of them knows."""
        return Granted(*map(max, self, other))
