"""A broker in the test's process, with methods that inject faults."""

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from fencelog.broker.config import BrokerConfig
from fencelog.errors import FencelogError
from fencelog.testing.held_requests import OWN_CLIENT_ID, Held
from fencelog.testing.node_thread import NodeThread
from fencelog.types import TopicPartition

if TYPE_CHECKING:
    from fencelog.client.blocking import Client
    from fencelog.client.model import Isolation, Record

HOST = "127.0.0.1"
REQUEST_TIMEOUT_S = 10.0


class LocalBroker:
    """A broker with a TCP port, in a thread of this process. Methods block; any thread may call.

    A context manager: entering starts it, leaving kills it. Its address stays the same over
    restarts. Acknowledged records survive ``kill``, as with ``durability=os`` (D1).
    """

    def __init__(self, data_dir: str | Path) -> None:
        """Reserve a free port; nothing runs before ``start``."""
        # Bound until ``close``: while the broker is down no other process gets the port, and no
        # client can connect to itself (TCP simultaneous open).
        self._port = socket.socket()
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port.bind((HOST, 0))
        port = int(self._port.getsockname()[1])
        self.data_dir = Path(data_dir)
        self.bootstrap = f"{HOST}:{port}"
        """``host:port`` for a client's ``bootstrap.servers``."""
        self._config = BrokerConfig(
            data_dir=str(data_dir),
            host=HOST,
            port=port,
            durability="os",
            group_initial_delay_s=0.0,  # a test's members need not wait for others
            group_session_timeout_ms_min=1,
        )
        self._holds: list[Held] = []
        self._node: NodeThread | None = None
        self._client: Client | None = None

    @property
    def running(self) -> bool:
        """Whether the broker is started and not killed."""
        return self._node is not None

    def start(self) -> Self:
        """Start on the present data; returns when the broker serves."""
        if self._node is not None:
            raise FencelogError("the broker is running; kill it first")
        self._node = NodeThread(self._config, self._holds)
        return self

    def kill(self) -> None:
        """End the broker as ``kill -9`` does; no effect if it is not running.

        Connections break, and nothing in progress is finished, flushed or answered. What the
        broker had written stays.
        """
        client, self._client = self._client, None
        node, self._node = self._node, None
        if client is not None:
            client.close()
        if node is not None:
            node.end()

    def restart(self) -> None:
        """Kill the broker and start it again, with the same data and port."""
        self.kill()
        self.start()

    def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic. Raises RequestError (TOPIC_ALREADY_EXISTS, INVALID_CONFIG …)."""
        self._connected().create_topic(name, partitions, configs)

    def records(self, topic: str, *, isolation: "Isolation" = "transactional") -> "list[Record]":
        """All records that a reader sees now, by partition and offset; decided transactions whole.

        ``transactional`` is Kafka's ``read_committed``, ``replicated`` is ``read_uncommitted``.
        Raises RequestError if the topic does not exist.
        """
        client = self._connected()
        self._started().run(self._started().settled())
        places = [TopicPartition(topic, each) for each in client.partitions([topic])[topic]]
        starts = client.offsets(places, "earliest", isolation)
        ends = client.offsets(places, "latest", isolation)
        return [
            record
            for place in places
            for record in client.fetch(place, starts[place], ends[place], isolation=isolation)
        ]

    def fence(self, transactional_id: str) -> None:
        """Fence the producer with this transactional id, as a new producer would (E7).

        Its open transaction is aborted. Raises RequestError for an unknown id.
        """
        client = self._connected()
        client.describe_transaction(transactional_id)
        client.producer(transactional_id=transactional_id).close()

    def expire_transaction(self, transactional_id: str) -> None:
        """Time out the open transaction now: it is aborted, its producer fenced (E12).

        Raises FencelogError if the id has no open transaction.
        """
        node = self._started()
        if not node.run(node.expire_transaction(transactional_id)):
            raise FencelogError(f"transactional id {transactional_id} has no open transaction")
        node.run(node.settled())

    def expire_member(self, group: str, client_id: str) -> None:
        """Time out the session of a group's member now, by its ``client.id``; the others rebalance.

        Raises FencelogError if the group has no such member.
        """
        node = self._started()
        members = self._connected().describe_group(group).members
        gone = [member.member_id for member in members if member.client_id == client_id]
        if not gone:
            raise FencelogError(f"group {group} has no member with client.id {client_id}")
        node.run(node.expire_members(group, gone))

    @contextmanager
    def hold(self, request: str, *, client_id: str | None = None) -> Iterator[Held]:
        """Hold requests with this name ("Produce", "EndTxn" …) before the broker handles them.

        All requests, or those of one ``client.id``, until ``release`` or ``drop_answer``; leaving
        the block releases. A hold lasts over restarts; requests that are held at a kill are lost.
        Later requests on the same connection wait behind a held one.
        """
        held = Held(request, client_id)
        self._holds.append(held)
        try:
            yield held
        finally:
            self._holds.remove(held)
            held.release()

    def close(self) -> None:
        """Kill the broker and free the port. May be called twice."""
        try:
            self.kill()
        finally:
            self._port.close()

    def __enter__(self) -> Self:
        """Start the broker if it is not running."""
        return self if self.running else self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the broker."""
        self.close()

    def _started(self) -> NodeThread:
        if self._node is None:
            raise FencelogError("the broker is not running; start it first")
        return self._node

    def _connected(self) -> "Client":
        self._started()
        if self._client is None:
            from fencelog.client.blocking import Client

            self._client = Client(
                self.bootstrap, client_id=OWN_CLIENT_ID, request_timeout_s=REQUEST_TIMEOUT_S
            )
        return self._client
