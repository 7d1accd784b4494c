"""Several brokers in the test's process, over one store, with methods that inject faults."""

import json
import socket
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from fencelog.adapters.sqlite_metadata import METADATA_FILE, SqliteMetadata
from fencelog.broker.config import BrokerConfig
from fencelog.broker.metadata.catalog import TOPIC_PREFIX, Topic
from fencelog.broker.metadata.cluster_state import PartitionKey
from fencelog.client.loop_thread import LoopThread
from fencelog.coordination.controller.model import CONTROLLER_KEY, PartitionState
from fencelog.errors import FencelogError
from fencelog.testing.held_requests import OWN_CLIENT_ID
from fencelog.testing.links import HOST, Link
from fencelog.testing.node_thread import InCluster, NodeThread
from fencelog.types import TopicPartition

if TYPE_CHECKING:
    from fencelog.client.blocking import Client
    from fencelog.client.model import Isolation, Record

REQUEST_TIMEOUT_S = 30.0
SESSION_S = 5.0
"""How long a silent broker is waited for; a busy machine may hold up all brokers for a while."""
LAG_S = 2.0
"""How long a replica may be behind before it leaves the ISR."""


class LocalCluster:
    """Brokers 1, 2 and so on, each with a TCP port and a thread of its own. Methods block.

    A context manager: entering starts it, leaving kills it. Topics have a replica on each broker
    unless they are created otherwise. Addresses stay the same over restarts. A broker that is
    killed is noticed at once, a silent one after five seconds (``broker.session.timeout.ms``).
    """

    def __init__(self, data_dir: str | Path, brokers: int = 3) -> None:
        """Reserve free ports; nothing runs before ``start``."""
        self.data_dir = Path(data_dir)
        self.brokers = tuple(range(1, brokers + 1))
        self._ports = {each: _reserved() for each in self.brokers}
        self._nodes: dict[int, NodeThread] = {}
        self._paused: dict[int, threading.Event] = {}
        self._links: dict[tuple[int, int], Link] = {}
        self._thread: LoopThread | None = None
        self._store: SqliteMetadata | None = None
        self._client: Client | None = None

    @property
    def bootstrap(self) -> str:
        """``host:port`` of every broker, for a client's ``bootstrap.servers``."""
        return ",".join(f"{HOST}:{self._port(each)}" for each in self.brokers)

    # -- brokers -------------------------------------------------------------------------------

    def start(self, broker: int | None = None) -> Self:
        """Start one broker, or all that do not run; returns when they serve."""
        if self._thread is None:
            self._thread = LoopThread("fencelog-cluster", self._end)
            self._thread.run(self._begin())
        for each in self.brokers if broker is None else (broker,):
            if each not in self._nodes:
                self._start(each)
        return self

    def kill(self, broker: int) -> None:
        """End a broker as ``kill -9`` does; no effect if it does not run. Its files stay.

        Raises the error of a background task of the broker that had failed before.
        """
        self._forget_client()
        self.resume(broker)
        node = self._nodes.pop(broker, None)
        if node is not None:
            node.end()
            for (_, target), link in self._links.items():
                if target == broker:
                    self._run(link.stop())

    def pause(self, broker: int) -> None:
        """Stop a broker as SIGSTOP does, until ``resume``: it answers nothing.

        Raises FencelogError if it does not run.
        """
        if broker in self._paused:
            return
        node = self._started(broker)
        self._forget_client()
        go_on = self._paused[broker] = threading.Event()
        node.pause(go_on)

    def resume(self, broker: int) -> None:
        """Let a stopped broker go on; if its lease has ended meanwhile, it joins as a new one."""
        paused = self._paused.pop(broker, None)
        if paused is not None:
            paused.set()

    def cut(self, one: int, other: int) -> None:
        """Hold back everything between two brokers, until ``heal``; clients reach both."""
        for pair in ((one, other), (other, one)):
            self._change(self._links[pair].cut)

    def heal(self) -> None:
        """End every cut."""
        for link in self._links.values():
            self._change(link.heal)

    # -- topics --------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        configs: Mapping[str, str] | None = None,
        *,
        replication: int | None = None,
    ) -> None:
        """Create a topic, with this many replicas (default: one on each broker).

        Raises RequestError (TOPIC_ALREADY_EXISTS, INVALID_REPLICATION_FACTOR …).
        """
        factor = len(self.brokers) if replication is None else replication
        self._connected().create_topic(name, partitions, configs, factor)

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the broker that leads a partition, -1 while none does.

        Raises FencelogError for a partition that does not exist.
        """
        return self._state(topic, partition).leader

    def isr(self, topic: str, partition: int = 0) -> tuple[int, ...]:
        """Return a partition's in-sync replicas, in order.

        Raises FencelogError for a partition that does not exist.
        """
        return tuple(sorted(self._state(topic, partition).isr))

    @property
    def controller(self) -> int:
        """The broker that runs the controller, -1 while none does."""
        cell = self._stored(CONTROLLER_KEY)
        return -1 if cell is None else int(json.loads(cell)["node_id"])

    def records(self, topic: str, *, isolation: "Isolation" = "transactional") -> "list[Record]":
        """All records that a reader sees now, by partition and offset; decided transactions whole.

        ``transactional`` is Kafka's ``read_committed``, ``replicated`` is ``read_uncommitted``.
        Raises RequestError if the topic does not exist, or a partition gets no leader in time.
        """
        client = self._connected()
        for broker, node in self._nodes.items():
            if broker not in self._paused:
                node.run(node.settled())
        places = [TopicPartition(topic, each) for each in client.partitions([topic])[topic]]
        starts = client.offsets(places, "earliest", isolation)
        ends = client.offsets(places, "latest", isolation)
        return [
            record
            for place in places
            for record in client.fetch(place, starts[place], ends[place], isolation=isolation)
        ]

    def close(self) -> None:
        """Kill all brokers and free the ports. May be called twice."""
        with ExitStack() as undo:
            for port in self._ports.values():
                undo.callback(port.close)
            if self._thread is not None:
                undo.callback(self._thread.close)
            for each in self.brokers:
                undo.callback(self.kill, each)

    def __enter__(self) -> Self:
        """Start all brokers; if that fails, none is left running."""
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the cluster."""
        self.close()

    # -- inside --------------------------------------------------------------------------------

    async def _begin(self) -> None:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._store = await SqliteMetadata.open(self.data_dir / METADATA_FILE, sync=False)
        for one in self.brokers:
            for other in self.brokers:
                if one != other:
                    link = self._links[one, other] = Link(self._port(other))
                    await link.start()

    async def _end(self) -> None:
        for link in self._links.values():
            await link.stop()
        if self._store is not None:
            await self._store.close()

    def _start(self, broker: int) -> None:
        assert self._thread is not None, "``start`` comes first"
        assert self._store is not None, "``start`` comes first"
        routes = {
            self._port(other): link.port
            for (one, other), link in self._links.items()
            if one == broker
        }
        for (_, target), link in self._links.items():
            if target == broker:
                self._run(link.start())
        config = BrokerConfig(
            data_dir=str(self.data_dir / f"broker-{broker}"),
            host=HOST,
            port=self._port(broker),
            node_id=broker,
            durability="os",
            replication_factor=len(self.brokers),
            internal_replication_factor=len(self.brokers),
            session_timeout_s=SESSION_S,
            replica_lag_s=LAG_S,
            group_initial_delay_s=0.0,  # a test's members need not wait for others
            group_session_timeout_ms_min=1,
        )
        shared = InCluster(self._store, self._thread.loop, routes)
        self._nodes[broker] = NodeThread(config, [], shared)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._thread is not None, "``start`` comes first"
        self._thread.run(work)

    def _change(self, change: Callable[[], None]) -> None:
        """Call this in the loop of the links."""

        async def run() -> None:
            change()

        self._run(run())

    def _port(self, broker: int) -> int:
        return int(self._ports[broker].getsockname()[1])

    def _started(self, broker: int) -> NodeThread:
        if broker not in self._nodes:
            raise FencelogError(f"broker {broker} is not running; start it first")
        return self._nodes[broker]

    def _state(self, topic: str, partition: int) -> PartitionState:
        cell = self._stored(TOPIC_PREFIX + topic)
        if cell is not None:
            key = PartitionKey(Topic.decode(topic, cell).topic_id, partition).text
            value = self._stored(key)
            if value is not None:
                return PartitionState.decode(key, value)
        raise FencelogError(f"there is no partition {topic}-{partition}")

    def _stored(self, key: str) -> bytes | None:
        """Return what the metadata store has, whatever the brokers know of it."""
        assert self._thread is not None, "``start`` comes first"
        assert self._store is not None, "``start`` comes first"
        cell = self._thread.run(self._store.get(key))
        return None if cell is None else cell[0]

    def _connected(self) -> "Client":
        if self._client is None:
            from fencelog.client.blocking import Client

            running = [each for each in self._nodes if each not in self._paused]
            self._client = Client(
                ",".join(f"{HOST}:{self._port(each)}" for each in running),
                client_id=OWN_CLIENT_ID,
                request_timeout_s=REQUEST_TIMEOUT_S,
            )
        return self._client

    def _forget_client(self) -> None:
        """Ask only brokers that answer from now on."""
        client, self._client = self._client, None
        if client is not None:
            client.close()


def _reserved() -> socket.socket:
    """Bind a free port, so that no other process gets it while its broker is down."""
    port = socket.socket()
    port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port.bind((HOST, 0))
    return port
