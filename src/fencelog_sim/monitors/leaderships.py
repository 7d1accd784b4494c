"""What a cluster's broker keeps in memory of the partitions that it leads, and has led.

Most of it would show as a wrong answer only if requests, elections and pauses met in one way of
many; here it is looked at with each step of the broker:

- a coordinator's shard whose partition is led no more decides nothing (E16, E17);
- a leadership begins without the verifications of an earlier one (E14).
"""

from collections.abc import Iterator
from typing import Any

from fencelog.broker.coordinators.loaded import Loaded
from fencelog.broker.replicas.led import Led
from fencelog.cluster_node import ClusterMember
from fencelog.node import Node


class _Life:
    """What was seen of one life of a broker."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.led: list[Led] = []
        self.loaded: list[Loaded[Any]] = []


class Leaderships:
    """Looks at the brokers of one world, each after its own steps."""

    def __init__(self) -> None:
        """Nothing was seen."""
        self._lives: dict[int, _Life] = {}

    def problems(self, number: int, node: Node) -> Iterator[str]:
        """Yield what is wrong after a step of a host's broker."""
        life = self._lives.get(number)
        if life is None or life.node is not node:
            life = self._lives[number] = _Life(node)
        yield from _of_shards(life)
        yield from _of_verifications(life)


def _of_shards(life: _Life) -> Iterator[str]:
    loaded = [each for runtime in life.node.broker.runtimes() for each in runtime.loaded()]
    for each in life.loaded if loaded != life.loaded else ():
        if each not in loaded and not each.dropped:
            yield f"the shard of {each.partition.name} decides on, and is not the one in service"
    life.loaded = loaded


def _of_verifications(life: _Life) -> Iterator[str]:
    member = life.node.membership
    assert isinstance(member, ClusterMember)
    led = member.led.all()
    if led == life.led:
        return
    for each in led:
        log = each.partition.log
        if each not in life.led and log._guards:
            yield f"{each.partition.name} is led with verifications of before"
    life.led = led
