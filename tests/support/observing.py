"""An observer that keeps what it is told."""

from collections.abc import Callable
from inspect import getmembers, isfunction

from fencelog.broker.observer import Observer

EVENTS = frozenset(name for name, _ in getmembers(Observer, isfunction))
"""The names of all events that there are."""


class Told(Observer):
    """Every event with its values, in the order in which it was told."""

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []

    def named(self, *names: str) -> list[tuple[object, ...]]:
        """The events of these names, with their names."""
        return [event for event in self.events if event[0] in names]

    def take(self) -> list[tuple[object, ...]]:
        """What was told since the last time."""
        events, self.events = self.events, []
        return events


def _keeping(name: str) -> Callable[..., None]:
    def told(self: Told, *values: object) -> None:
        self.events.append((name, *values))

    return told


for each in EVENTS:
    setattr(Told, each, _keeping(each))
