"""What the metadata store holds of a cluster's brokers and partitions.

Keys: ``broker/<node id>`` (a registration, under the broker's lease), ``controller`` (which broker
runs the rules, under its lease), ``partition/<topic id>/<index>``. Values are JSON objects.
"""

import json
from typing import NamedTuple

from fencelog.errors import CorruptionError
from fencelog.types import LeaderEpoch, NodeId

BROKER_PREFIX = "broker/"
CONTROLLER_KEY = "controller"
PARTITION_PREFIX = "partition/"
NO_LEADER = NodeId(-1)


class PartitionState(NamedTuple):
    """The replicas of one partition and who leads it (F1, F2, F7)."""

    replicas: tuple[NodeId, ...]
    """The brokers that hold it; the first one leads it if it can."""
    leader: NodeId
    """``NO_LEADER`` while none can be elected."""
    leader_epoch: LeaderEpoch
    """Grows with each change of the leader, each new life of it, and when it has resigned."""
    isr: tuple[NodeId, ...]
    """The in-sync replicas: each has everything below the high watermark, and moves it."""
    eligible: tuple[NodeId, ...] = ()
    """Replicas that left the ISR while it was smaller than ``min.insync.replicas``.

    The high watermark has not moved since, so they have everything below it (KIP-966).
    """
    leader_life: str = ""
    """The incarnation that was elected: another life of the leader waits for another epoch."""
    heir: NodeId = NO_LEADER
    """The in-sync replica to which the leader is to hand over; ``NO_LEADER``: it leads on."""

    def encode(self) -> bytes:
        """Return the stored form."""
        return json.dumps(self._asdict(), sort_keys=True).encode()

    @classmethod
    def decode(cls, key: str, value: bytes) -> "PartitionState":
        """Return the state of a stored form. Raises CorruptionError naming the key."""
        try:
            fields = json.loads(value)
            return cls(
                replicas=_node_ids(fields["replicas"]),
                leader=NodeId(int(fields["leader"])),
                leader_epoch=LeaderEpoch(int(fields["leader_epoch"])),
                isr=_node_ids(fields["isr"]),
                eligible=_node_ids(fields["eligible"]),
                leader_life=str(fields["leader_life"]),
                heir=NodeId(int(fields.get("heir", NO_LEADER))),
            )
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptionError(
                f"metadata key {key}: not a partition's state: {error}"
            ) from error


class Registration(NamedTuple):
    """A broker that is in the cluster.

    It is written at the beginning of each life, when its disk gets full or has room again, and when
    it stops.
    """

    node_id: NodeId
    host: str
    port: int
    incarnation: str
    """Random: another life of the process has another one."""
    directory: str
    """The id of its data directory: the same one again is the same broker, started anew."""
    rack: str | None = None
    is_stopping: bool = False
    """It asks to lead nothing any more."""
    is_full: bool = False
    """It cannot write: it leads only what no other can."""
    begun_at: int = 0
    """The version of this life's first registration; 0 in that one."""

    @property
    def rank(self) -> int:
        """Of in-sync replicas one with the lowest rank leads."""
        return 2 if self.is_stopping else int(self.is_full)

    def encode(self) -> bytes:
        """Return the stored form."""
        return json.dumps(self._asdict(), sort_keys=True).encode()

    @classmethod
    def decode(cls, key: str, value: bytes) -> "Registration":
        """Return the registration of a stored form. Raises CorruptionError naming the key."""
        try:
            fields = json.loads(value)
            return cls(
                node_id=NodeId(int(fields["node_id"])),
                host=str(fields["host"]),
                port=int(fields["port"]),
                incarnation=str(fields["incarnation"]),
                directory=str(fields["directory"]),
                rack=None if fields["rack"] is None else str(fields["rack"]),
                is_stopping=bool(fields["is_stopping"]),
                is_full=bool(fields["is_full"]),
                begun_at=int(fields["begun_at"]),
            )
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptionError(f"metadata key {key}: not a registration: {error}") from error


def _node_ids(values: list[int]) -> tuple[NodeId, ...]:
    return tuple(NodeId(int(each)) for each in values)
