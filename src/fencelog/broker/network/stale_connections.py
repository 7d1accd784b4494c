"""Tracks which connection each transactional producer used last, for each API key (E14).

A client that replaces a connection may still have a request in flight on it. Under the same epoch
that request cannot be told from a new one, but its connection can: it was opened before the one
that the client uses now. Each API key is tracked by itself, because clients use one connection to a
leader and another to a coordinator at the same time. But a connection that was replaced for one key
is replaced for all: a request in flight on it, such as the offsets of a transaction that the client
aborted, must not take effect.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from fencelog.types import ProducerEpoch, ProducerId
from fencelog.wire.api_versions import ApiKey

PRODUCERS_MAX = 20_000
"""Producers tracked; above it the least recently used one is forgotten."""
REPLACED_MAX = 8
"""Connections that one producer replaced in one epoch; above it the oldest is forgotten."""


@dataclass(slots=True)
class _Producer:
    """``numbers``: of the newest connection, by API key; ``replaced``: of the replaced ones."""

    epoch: ProducerEpoch
    numbers: dict[ApiKey, int] = field(default_factory=dict)
    replaced: list[int] = field(default_factory=list)


class StaleConnections:
    """Remembers connection numbers, which grow as connections are accepted."""

    def __init__(self, producers_max: int = PRODUCERS_MAX) -> None:
        """Start without producers."""
        self._producers_max = producers_max
        self._producers: OrderedDict[ProducerId, _Producer] = OrderedDict()

    def is_stale(
        self, producer_id: ProducerId, epoch: ProducerEpoch, key: ApiKey, number: int
    ) -> bool:
        """Whether a request came on a connection that its producer replaced by a newer one.

        A newer epoch starts afresh; an older one is not stale and fenced by the epoch checks.
        """
        known = self._producers.get(producer_id)
        if known is None or epoch != known.epoch:
            return False
        return number < known.numbers.get(key, number) or number in known.replaced

    def accepted(
        self, producer_id: ProducerId, epoch: ProducerEpoch, key: ApiKey, number: int
    ) -> None:
        """Record the connection of a producer's request that took effect.

        A refused request is not recorded: it may be a stranger's, who names the producer.
        """
        known = self._producers.get(producer_id)
        if known is not None and epoch < known.epoch:
            return
        if known is None or epoch > known.epoch:
            known = self._producers[producer_id] = _Producer(epoch)
        newest = known.numbers.get(key, number)
        if number > newest and newest not in known.replaced:
            known.replaced = [*known.replaced, newest][-REPLACED_MAX:]
        known.numbers[key] = max(newest, number)
        self._producers.move_to_end(producer_id)
        if len(self._producers) > self._producers_max:
            self._producers.popitem(last=False)

    def __len__(self) -> int:
        """Return how many producers are tracked."""
        return len(self._producers)
