"""Which connection each transactional producer used last, for each kind of request (E14).

A client that gives a connection up may have a request on it that is still under way. Under the same
epoch it cannot be told from a new one, but its connection can: it was opened earlier than the one
that the client goes on with. Each kind of request is followed by itself, because clients keep
connections apart for leaders and coordinators, and use them side by side. But a connection that
was replaced for one kind is given up for all: of what is still under way on it the client may not
ask anything again, such as the offsets of a transaction that it aborted.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from fencelog.types import ProducerEpoch, ProducerId
from fencelog.wire.api_versions import ApiKey

PRODUCERS_MAX = 20_000
"""Producers followed; above it whoever asked longest ago is as free as one that never asked."""
GIVEN_UP_MAX = 8
"""Connections that one producer gave up in one epoch; above it the oldest is forgotten."""


@dataclass(slots=True)
class _Producer:
    """``numbers``: of the newest connection, by kind of request; ``given_up``: of replaced ones."""

    epoch: ProducerEpoch
    numbers: dict[ApiKey, int] = field(default_factory=dict)
    given_up: list[int] = field(default_factory=list)


class StaleConnections:
    """Remembers numbers of connections, which grow as connections are accepted."""

    def __init__(self, producers_max: int = PRODUCERS_MAX) -> None:
        """Know nobody yet."""
        self._producers_max = producers_max
        self._producers: OrderedDict[ProducerId, _Producer] = OrderedDict()

    def accepts(
        self, producer_id: ProducerId, epoch: ProducerEpoch, key: ApiKey, number: int
    ) -> bool:
        """Note that a producer was heard; False on a connection that it replaced by a newer one.

        A newer epoch begins anew; an older one is let through, to be fenced by what knows epochs.
        """
        known = self._producers.get(producer_id)
        if known is not None and epoch < known.epoch:
            return True
        if known is None or epoch > known.epoch:
            known = self._producers[producer_id] = _Producer(epoch)
        newest = known.numbers.get(key, number)
        if number < newest or number in known.given_up:
            return False
        if number > newest and newest not in known.given_up:
            known.given_up = [*known.given_up, newest][-GIVEN_UP_MAX:]
        known.numbers[key] = number
        self._producers.move_to_end(producer_id)
        if len(self._producers) > self._producers_max:
            self._producers.popitem(last=False)
        return True

    def __len__(self) -> int:
        """Return how many producers are followed."""
        return len(self._producers)
