"""When the readers of a group have come: until then nobody takes more than a first segment."""

from fencelog.coordination.reader_group.state import GroupState

SETTLE_S = 1.0
"""After a reader has joined others may follow."""
SETTLE_MAX_S = 10.0
"""They may follow for ever: that holds nobody up for longer."""


class Settling:
    """Who has joined, and since when nobody has. Times are seconds of one clock."""

    def __init__(self) -> None:
        """Nobody has joined."""
        self._joined_s = self._unsettled_s = float("-inf")
        self._known: set[tuple[str, int]] = set()

    def look(self, state: GroupState, now_s: float) -> None:
        """Take note of who is online."""
        known = {(name, each.incarnation) for name, each in state.readers.items()}
        if known - self._known:
            if now_s >= self._joined_s + SETTLE_S:
                self._unsettled_s = now_s
            self._joined_s = now_s
        self._known = known

    @property
    def over_at_s(self) -> float:
        """When the readers that have joined are all that there are."""
        return min(self._joined_s + SETTLE_S, self._unsettled_s + SETTLE_MAX_S)
