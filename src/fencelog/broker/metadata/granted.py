"""Where the metadata store has the numbers that it grants once."""

from fencelog.storage.granted import Granted

PRODUCER_ID_KEY = "producer-ids"
"""Has the end of the last block of ids that a broker has reserved, in decimal."""
COORDINATOR_EPOCH_PREFIX = "coordinator-epoch/"
"""Of the keys that have the last epoch of a coordinator's shard, in decimal."""
PRODUCER_ID_MAX = 2**63 - 1
COORDINATOR_EPOCH_MAX = 2**30
"""No broker comes near it. A foreign value up to here leaves as many epochs above it."""


def granted_by(key: str, value: bytes) -> Granted:
    """Return what one of these keys says. Raises ValueError for what no broker has written."""
    if key == PRODUCER_ID_KEY:
        return Granted(producer_ids=producer_ids_of(value))
    return Granted(coordinator_epoch=_number(value, COORDINATOR_EPOCH_MAX))


def producer_ids_of(value: bytes) -> int:
    """Return the end of the last block of ids. Raises ValueError for what is none."""
    return _number(value, PRODUCER_ID_MAX)


def _number(value: bytes, maximum: int) -> int:
    number = int(value)
    if not 0 <= number <= maximum:
        raise ValueError(f"{number} is not between 0 and {maximum}")
    return number
