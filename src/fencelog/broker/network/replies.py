"""What a handler answers: a reply, or one that comes later."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from fencelog.types import Buffer

Reply: TypeAlias = Sequence[Buffer] | None
"""The response's buffers without the size prefix; None where nothing is sent (acks=0)."""


class Pending:
    """A reply that comes later: a future that calls back at once, not in the next iteration."""

    __slots__ = ("_deliver", "_reply", "settled")

    def __init__(self) -> None:
        """Start unsettled and without a callback."""
        self._deliver: Callable[[Reply], None] | None = None
        self._reply: Reply = None
        self.settled = False

    def settle(self, reply: Reply) -> None:
        """Give the reply, once."""
        assert not self.settled
        self._reply = reply
        self.settled = True
        if self._deliver is not None:
            self._deliver(reply)

    def when_settled(self, deliver: Callable[[Reply], None]) -> None:
        """Call ``deliver`` with the reply, at once if it is settled already."""
        self._deliver = deliver
        if self.settled:
            deliver(self._reply)
