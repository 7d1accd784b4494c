"""Monitors of one run: what must hold after every step of the broker."""

from collections import Counter
from fencelog.node import Node
from fencelog.sim.disk import Loss
from fencelog.sim.world import World


class Monitor:
    """Looks on at one world's broker."""

    def __init__(self, world: World) -> None:
        """Watch a world from its first event on."""
        self.violations: list[str] = []
        self.counts: Counter[str] = Counter()
        world.watcher = self

    def booting(self, node: Node) -> None:
        """A node is about to start on the disk as it is."""

    def attach(self, node: Node) -> None:
        """The node begins to serve."""

    def crashed(self, loss: Loss | None) -> None:
        """The broker's process has ended."""
