"""Numbers that the metadata store grants once: producer ids (E7) and coordinator epochs (E17)."""

from typing import NamedTuple

PRODUCER_ID_KEY = "producer-ids"
"""Has the end of the last block of ids that a broker has reserved, in decimal."""
COORDINATOR_EPOCH_PREFIX = "coordinator-epoch/"
"""Of the keys that have the last epoch of a coordinator's shard, in decimal."""
PRODUCER_ID_MAX = 2**63 - 1
COORDINATOR_EPOCH_MAX = 2**30
"""Half of what an epoch may be: a value that nobody's loads have reached leaves room above it."""


class Granted(NamedTuple):
    """What was granted, as far as is known."""

    producer_ids: int = 0
    """The producer ids below this one."""
    coordinator_epoch: int = -1
    """The highest of any shard."""

    def with_key(self, key: str, value: bytes) -> "Granted":
        """Return what is known with this key. Raises ValueError for what no broker has written."""
        if key == PRODUCER_ID_KEY:
            return self._replace(producer_ids=max(self.producer_ids, producer_ids_of(value)))
        epoch = _number(value, COORDINATOR_EPOCH_MAX)
        return self._replace(coordinator_epoch=max(self.coordinator_epoch, epoch))


def producer_ids_of(value: bytes) -> int:
    """Return the end of the last block of ids. Raises ValueError for what is none."""
    return _number(value, PRODUCER_ID_MAX)


def _number(value: bytes, maximum: int) -> int:
    number = int(value)
    if not 0 <= number <= maximum:
        raise ValueError(f"{number} is not between 0 and {maximum}")
    return number
