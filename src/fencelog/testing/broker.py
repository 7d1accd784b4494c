"""A broker in the test's own process, and what a test may do to it."""

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from fencelog.broker.config import BrokerConfig
from fencelog.errors import FencelogError
from fencelog.testing.door import OWN_CLIENT_ID, Held
from fencelog.testing.life import Life
from fencelog.types import TopicPartition

if TYPE_CHECKING:
    from fencelog.client.blocking import Client
    from fencelog.client.model import Isolation, Record

HOST = "127.0.0.1"
REQUEST_TIMEOUT_S = 10.0


class LocalBroker:
    """A real broker on real TCP, in a thread of this process. Its methods block; use any thread.

    A context manager: entering starts it, leaving kills it. Its address stays the same over
    restarts. What is acknowledged survives ``kill``, as with ``durability=os`` (D1).
    """

    def __init__(self, data_dir: str | Path) -> None:
        """Take a free port; nothing runs before ``start``."""
        # Bound for as long as this object lives, listening or not: while the broker is down nobody
        # else gets the port, and no client's connection attempt can meet itself on it.
        self._port = socket.socket()
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port.bind((HOST, 0))
        port = int(self._port.getsockname()[1])
        self.data_dir = Path(data_dir)
        self.bootstrap = f"{HOST}:{port}"
        """``host:port``, for any client's ``bootstrap.servers``."""
        self._config = BrokerConfig(
            data_dir=str(data_dir),
            host=HOST,
            port=port,
            durability="os",
            group_initial_delay_s=0.0,  # a test's members are few, and do not wait for others
            group_session_timeout_ms_min=1,
        )
        self._holds: list[Held] = []
        self._life: Life | None = None
        self._client: Client | None = None

    @property
    def running(self) -> bool:
        """Whether it was started and not killed."""
        return self._life is not None

    def start(self) -> Self:
        """Start on what the last life left; returns when it serves."""
        if self._life is not None:
            raise FencelogError("the broker is running; kill it first")
        self._life = Life(self._config, self._holds)
        return self

    def kill(self) -> None:
        """End it as ``kill -9`` does, and do nothing where it is dead.

        Connections break, nothing that was under way is finished, flushed or answered. What the
        broker had written stays.
        """
        client, self._client = self._client, None
        life, self._life = self._life, None
        if client is not None:
            client.close()
        if life is not None:
            life.end()

    def restart(self) -> None:
        """Kill it and start it again, on the same data and the same port."""
        self.kill()
        self.start()

    def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic. Raises RequestError (TOPIC_ALREADY_EXISTS, INVALID_CONFIG …)."""
        self._asking().create_topic(name, partitions, configs)

    def records(self, topic: str, *, isolation: "Isolation" = "transactional") -> "list[Record]":
        """All records that a reader sees now, by partition and offset; decided transactions whole.

        ``transactional`` is what a consumer with ``read_committed`` sees, ``replicated`` what one
        with ``read_uncommitted`` sees. Raises RequestError where there is no such topic.
        """
        client = self._asking()
        self._alive().run(self._alive().settled())
        places = [TopicPartition(topic, each) for each in client.partitions([topic])[topic]]
        starts = client.offsets(places, "earliest", isolation)
        ends = client.offsets(places, "latest", isolation)
        return [
            record
            for place in places
            for record in client.fetch(place, starts[place], ends[place], isolation=isolation)
        ]

    def fence(self, transactional_id: str) -> None:
        """Make whoever uses this transactional id a zombie, as a new instance of it would (E7).

        Its open transaction is aborted. Raises RequestError where nobody has used the id.
        """
        client = self._asking()
        client.describe_transaction(transactional_id)
        client.producer(transactional_id=transactional_id).close()

    def expire_transaction(self, transactional_id: str) -> None:
        """Let the open transaction's timeout be over now: it is aborted, its producer fenced (E12).

        Raises FencelogError where this id has no open transaction.
        """
        life = self._alive()
        if not life.run(life.expire_transaction(transactional_id)):
            raise FencelogError(f"{transactional_id} has no open transaction")
        life.run(life.settled())

    def expire_member(self, group: str, client_id: str) -> None:
        """Let the session of a group's member be over now, by its ``client.id``: others take over.

        Raises FencelogError where the group has no such member.
        """
        life = self._alive()
        members = self._asking().describe_group(group).members
        gone = [member.member_id for member in members if member.client_id == client_id]
        if not gone:
            raise FencelogError(f"group {group} has no member with client.id {client_id}")
        life.run(life.expire_members(group, gone))

    @contextmanager
    def hold(self, request: str, *, client_id: str | None = None) -> Iterator[Held]:
        """Hold requests of this name ("Produce", "EndTxn" …) before the broker sees them.

        All that come, or those of one ``client.id``, until ``release`` or ``drop_answer``; leaving
        releases. It lasts over restarts; what was held when the broker was killed is lost. Later
        requests on the connection of a held one wait behind it.
        """
        held = Held(request, client_id)
        self._holds.append(held)
        try:
            yield held
        finally:
            self._holds.remove(held)
            held.release()

    def close(self) -> None:
        """Kill it and give the port back. Harmless twice."""
        try:
            self.kill()
        finally:
            self._port.close()

    def __enter__(self) -> Self:
        """Start it if it does not run yet."""
        return self if self.running else self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    def _alive(self) -> Life:
        if self._life is None:
            raise FencelogError("the broker is not running; start it first")
        return self._life

    def _asking(self) -> "Client":
        self._alive()
        if self._client is None:
            from fencelog.client.blocking import Client

            self._client = Client(
                self.bootstrap, client_id=OWN_CLIENT_ID, request_timeout_s=REQUEST_TIMEOUT_S
            )
        return self._client
