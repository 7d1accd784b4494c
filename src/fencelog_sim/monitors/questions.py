"""What the monitor of replication asks the brokers of a world, which it does not import."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from fencelog.node import Node
from fencelog.types import TopicPartition
from fencelog_sim.monitors.committed import ShownOffsets

Led: TypeAlias = Callable[[Node, TopicPartition], int | None]
"""The epoch in which a broker leads a partition right now; None if it does not."""
Shown: TypeAlias = Callable[[Node, TopicPartition], ShownOffsets | None]
"""What a broker's replica would show; None if it is not open."""
Differ: TypeAlias = Callable[[Node, Sequence[Node], TopicPartition], Iterable[str]]
"""What replicas know of a partition otherwise than their leader, which may be among them."""
Look: TypeAlias = Callable[[int, Node], Iterable[str]]
"""What is wrong in a host's broker after one of its steps."""
