"""The client's connections, metadata cache, and routes to leaders and coordinators.

The cache may be stale: after an error such as NOT_LEADER_OR_FOLLOWER the caller drops the route,
looks it up again and repeats the request.
"""

import asyncio
import struct
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeVar

from fencelog.client.in_turn import ask_in_turn
from fencelog.client.leaders import KnownLeaders
from fencelog.client.model import (
    BrokerDescription,
    PartitionDescription,
    TopicDescription,
)
from fencelog.client.retry import retrying
from fencelog.client.streams.known import KnownStreams, Places, find_places
from fencelog.errors import ErrorCode, WireError
from fencelog.rpc.connection import Connection, connect
from fencelog.rpc.deadline import Deadline
from fencelog.rpc.failures import client_closed, failure
from fencelog.settings.hosts import is_host
from fencelog.types import TopicId, TopicPartition
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.hot import CurrentLeader, NodeEndpoint, Successor
from fencelog.wire.message import Message
from fencelog.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from fencelog.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from fencelog.wire.primitives import error_code

R = TypeVar("R", bound=Message)
T = TypeVar("T")

DEFAULT_PORT = 9092
GROUP = 0
TRANSACTION = 1
OWNERSHIP = 100
Address = tuple[str, int]
Lane = Literal["requests", "fetches"]
"""A broker answers a connection in order, so a waiting fetch gets a connection of its own."""
CONNECT_TIMEOUT_S = 5.0
FIND_COORDINATOR_VERSION_MAX = 3  # above it a request has a list of keys (KIP-699)
METADATA_VERSION_MAX = 12


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """How a client connects to a cluster.

    ``request_timeout_s`` limits one request, after which it is sent again on a new connection;
    ``api_timeout_s`` a call with all of its retries (None: as one request).
    """

    bootstrap_servers: str
    client_id: str = "fencelog"
    request_timeout_s: float = 30.0
    api_timeout_s: float | None = None
    bootstrap: tuple[tuple[str, int], ...] = field(init=False)

    def __post_init__(self) -> None:
        """Parse the addresses. Raises ValueError for a malformed one."""
        addresses = tuple(
            parse_address(part) for part in self.bootstrap_servers.split(",") if part.strip()
        )
        if not addresses:
            raise ValueError("bootstrap servers are required, for example 127.0.0.1:9092")
        object.__setattr__(self, "bootstrap", addresses)


def parse_address(text: str) -> tuple[str, int]:
    """Parse ``host``, ``host:port`` or ``[ipv6]:port``. Raises ValueError if malformed."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or (":" in host and not host.startswith("[")) or host.endswith(":"):
        host, port = text.strip(), str(DEFAULT_PORT)
    host = host.strip("[]")
    if not is_host(host) or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{text.strip()!r} is not an address; write HOST:PORT")
    return host, int(port)


@dataclass(frozen=True)
class ClusterView:
    """The cluster as one Metadata response describes it."""

    cluster_id: str | None
    controller_id: int
    brokers: tuple[BrokerDescription, ...]
    topics: tuple[TopicDescription, ...]


class Cluster:
    """Connections and routes. Belongs to one event loop from its first request on."""

    def __init__(
        self,
        options: ClusterOptions,
        opened: Callable[[Connection, Deadline], Awaitable[None]] | None = None,
    ) -> None:
        """Connect lazily. ``opened`` prepares each connection before it is used, or raises."""
        self.options = options
        self._opened = opened
        self._connections: dict[tuple[Address, Lane], Connection] = {}
        self._opening: dict[tuple[Address, Lane], asyncio.Lock] = {}
        self._closed = False
        self._disconnected: str | None = None
        """Why all connections were closed last."""
        self._times_disconnected = 0
        self._brokers: dict[int, Address] = {}
        self._topics: dict[str, TopicDescription] = {}
        self._coordinators: dict[tuple[int, str], Address] = {}
        self._leaders = KnownLeaders()
        self.streams = KnownStreams()
        self._places: dict[str, Places] = {}
        """Of the topics that are cached, what writers have asked for."""

    def disconnect(self, reason: str) -> None:
        """Close every connection, those too that are being opened; the next request opens one."""
        self._disconnected, self._times_disconnected = reason, self._times_disconnected + 1
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close(reason)

    async def close(self) -> None:
        """Close every connection, for ever: later requests raise FencelogError. Harmless twice."""
        self._closed = True
        self.disconnect("closed by the client")
        # One iteration of the loop lets the transports close their sockets.
        await asyncio.sleep(0)

    def deadline(self) -> Deadline:
        """Return the time by which a call that starts now must have succeeded."""
        options = self.options
        return Deadline(options.api_timeout_s or options.request_timeout_s)

    def request_deadline(self, deadline: Deadline) -> Deadline:
        """Return the time by which a request that is sent now must be answered."""
        return deadline.within(self.options.request_timeout_s)

    # --- requests

    async def ask(
        self,
        connection: Connection,
        request: Message,
        response: type[R],
        deadline: Deadline,
        version_max: int = 1 << 15,
    ) -> R:
        """Send a request in the newest version that both sides support, and read the response.

        Raises RequestError: UNSUPPORTED_VERSION if there is no common version,
        NETWORK_EXCEPTION if the connection is lost or the response malformed; ValueError for a
        number that does not fit into its field.
        """
        low, high = connection.versions.get(request.API_KEY, (1, 0))
        version = min(high, request.MAX_VERSION, version_max)
        name = type(request).__name__
        if version < max(low, request.MIN_VERSION):
            raise failure(ErrorCode.UNSUPPORTED_VERSION, f"{name} to broker {connection.address}")
        try:
            asked = request.write(version)
        except (struct.error, OverflowError) as error:
            raise ValueError(f"{name}: a number is out of range: {error}") from error
        body = await connection.call(
            request.API_KEY, version, [asked], self.request_deadline(deadline)
        )
        try:
            return response.read(body, version)
        except WireError as error:
            connection.close(f"malformed response to {name}: {error}")
            raise failure(
                ErrorCode.NETWORK_EXCEPTION, f"{name} to {connection.address}", str(error)
            ) from error

    async def connection(
        self, address: Address, deadline: Deadline, lane: Lane = "requests"
    ) -> Connection:
        """Return the connection to this address; opens it if necessary.

        Raises RequestError (NETWORK_EXCEPTION) if nobody answers, or all are closed meanwhile, and
        FencelogError after ``close``.
        """
        key = (address, lane)
        async with self._opening.setdefault(key, asyncio.Lock()):
            if self._closed:
                raise client_closed()
            found = self._connections.get(key)
            if found is None or found.closed:
                limit = Deadline(min(CONNECT_TIMEOUT_S, max(deadline.left_s, 0.1)))
                times = self._times_disconnected
                found = await connect(*address, self.options.client_id, limit)
                if self._opened is not None:
                    await self._prepare(found, self._opened(found, deadline))
                if self._times_disconnected != times:
                    found.close()
                    raise failure(
                        ErrorCode.NETWORK_EXCEPTION,
                        f"connection to broker {found.address}",
                        self._disconnected,
                    )
                self._connections[key] = found
            return found

    async def _prepare(self, connection: Connection, work: Awaitable[None]) -> None:
        try:
            await work
        except BaseException:
            connection.close()
            raise

    async def any_broker(self, deadline: Deadline) -> Connection:
        """Return a connection to any broker: an open one, else the first that responds.

        Raises RequestError (NETWORK_EXCEPTION) with all addresses that were tried.
        """

        async def itself(connection: Connection) -> Connection:
            return connection

        return await self.of_any_broker(itself, deadline)

    async def of_any_broker(
        self, ask: Callable[[Connection], Awaitable[T]], deadline: Deadline
    ) -> T:
        """Return what the first broker answers: open connections come first, silent ones last.

        Raises RequestError as ``any_broker`` does.
        """

        async def at(address: Address) -> T:
            return await ask(await self.connection(address, deadline))

        def overtaken(address: Address) -> None:
            silent = self._connections.pop((address, "requests"), None)
            if silent is not None:
                self._connections[address, "requests"] = silent  # asked after the others

        opened = [
            address
            for (address, lane), found in self._connections.items()
            if lane == "requests" and not found.closed
        ]
        known = [*opened, *self._brokers.values(), *self.options.bootstrap]
        return await ask_in_turn(list(dict.fromkeys(known)), at, overtaken)

    async def controller(self, deadline: Deadline) -> Connection:
        """Return a connection to the controller; to any broker while none is known.

        Raises RequestError.
        """
        view = await self.metadata([], deadline)
        address = self.address_of(view.controller_id)
        if address is None:
            return await self.any_broker(deadline)
        return await self.connection(address, deadline)

    async def reach(self) -> None:
        """Connect to any broker. Raises RequestError (NETWORK_EXCEPTION) if none answers."""
        await self.any_broker(self.deadline())

    # --- metadata

    async def metadata(self, topics: Sequence[str] | None, deadline: Deadline) -> ClusterView:
        """Request metadata of these topics (None: all), and cache their leaders.

        A topic that does not exist is omitted; no topic is created.
        """
        request = MetadataRequest(
            topics=None if topics is None else [MetadataRequestTopic(name=t) for t in topics],
            allow_auto_topic_creation=False,
        )

        async def ask(connection: Connection) -> MetadataResponse:
            return await self.ask(
                connection, request, MetadataResponse, deadline, METADATA_VERSION_MAX
            )

        answer = await retrying(lambda: self.of_any_broker(ask, deadline), deadline)
        brokers = tuple(
            BrokerDescription(node_id=b.node_id, host=b.host, port=b.port, rack=b.rack)
            for b in answer.brokers
        )
        self._brokers = {b.node_id: (b.host, b.port) for b in brokers}
        for name in list(self._places) if topics is None else topics:
            self.forget(name)
        found = tuple(
            self._leaders.newest(_topic(topic)) for topic in answer.topics if _exists(topic)
        )
        self._topics.update((topic.name, topic) for topic in found)
        return ClusterView(answer.cluster_id, answer.controller_id, brokers, found)

    def address_of(self, node_id: int) -> Address | None:
        """Return a broker's address from the last Metadata response."""
        return self._brokers.get(node_id)

    def known_partition_count(self, topic: str) -> int | None:
        """Return the cached partition count of a topic."""
        found = self._topics.get(topic)
        return None if found is None else len(found.partitions)

    async def partition_counts(self, topics: Iterable[str], highest: int = -1) -> dict[str, int]:
        """Return the partition count of each topic.

        Requests those that are not cached, or without partition ``highest`` when they were: it may
        have been added since. Raises RequestError (UNKNOWN_TOPIC_OR_PARTITION) if a topic does not
        exist.
        """
        wanted = list(topics)
        needed = max(highest, 0) + 1
        missing = [each for each in wanted if (self.known_partition_count(each) or 0) < needed]
        if missing:
            await self.metadata(missing, self.deadline())
        return {topic: len(self._known(topic).partitions) for topic in wanted}

    async def leader(
        self, partition: TopicPartition, deadline: Deadline, lane: Lane = "requests"
    ) -> Connection:
        """Return a connection to a partition's leader.

        A partition that is not cached is looked up: it may have been added since. Raises
        RequestError: UNKNOWN_TOPIC_OR_PARTITION, or LEADER_NOT_AVAILABLE, which is
        retriable.
        """
        found = self._cached(partition)
        if found is None:
            await self.metadata([partition.topic], deadline)
            found = self._cached(partition)
        if found is None:
            raise failure(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {partition.topic} has no partition {partition.partition}",
                f"it has {len(self._known(partition.topic).partitions)} partitions, counted from 0",
            )
        address = self._brokers.get(found.leader)
        if address is None:
            self.forget(partition.topic)
            raise failure(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} has no leader now")
        return await self.connection(address, deadline, lane)

    def leader_epoch(self, partition: TopicPartition) -> int:
        """Return the leader epoch that is known of a partition, or -1 (KIP-320)."""
        found = self._cached(partition)
        return -1 if found is None else found.leader_epoch

    def learn(
        self,
        partition: TopicPartition,
        leader: CurrentLeader | None,
        endpoints: Iterable[NodeEndpoint],
    ) -> bool:
        """Take the leader that a broker has named instead of itself (KIP-951).

        Returns whether it is news, so that nobody needs to be asked who leads.
        """
        topic = self._topics.get(partition.topic)
        if leader is None or topic is None:
            return False
        self._brokers.update((each.node_id, (each.host, each.port)) for each in endpoints)
        if leader.leader_id not in self._brokers:
            return False
        changed = self._leaders.learn(topic, partition.partition, *leader)
        if changed is None:
            return False
        self._topics[topic.name] = changed
        return True

    def _cached(self, partition: TopicPartition) -> PartitionDescription | None:
        topic = self._topics.get(partition.topic)
        partitions = () if topic is None else topic.partitions
        return next((each for each in partitions if each.partition == partition.partition), None)

    def forget(self, topic: str) -> None:
        """Look a topic up again before it is used next."""
        self._topics.pop(topic, None)
        self._places.pop(topic, None)

    def topic_id(self, topic: str) -> TopicId | None:
        """Return the cached id of a topic."""
        found = self._topics.get(topic)
        return None if found is None else found.topic_id

    # --- where writers put records

    def known_places(self, topic: str, highest: int = -1) -> Places | None:
        """Return a topic's places if they are cached, with partition ``highest`` if it has any."""
        places = self._places.get(topic)
        return None if isinstance(places, int) and places <= highest else places

    async def places(self, topics: Iterable[str], highest: int = -1) -> dict[str, Places]:
        """Return where records of each topic may be put; otherwise as ``partition_counts``.

        The first use of a topic asks whether it is a stream, if the broker knows streams.
        """
        found = await find_places(self, list(topics), highest)
        # What was forgotten meanwhile is asked for again.
        self._places.update((name, each) for name, each in found.items() if name in self._topics)
        return found

    def learn_successors(
        self, topic: str, topic_id: TopicId, successors: Iterable[Successor]
    ) -> None:
        """Take the segments that a sealed one has named: the next records go there."""
        self.streams.learn_successors(topic, topic_id, successors)
        self._places.pop(topic, None)

    def _known(self, topic: str) -> TopicDescription:
        found = self._topics.get(topic)
        if found is None:
            raise failure(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic} does not exist")
        return found

    # --- coordinators

    async def coordinator(self, kind: int, key: str, deadline: Deadline) -> Connection:
        """Return a connection to a coordinator."""
        return await self.connection(await self.coordinator_address(kind, key, deadline), deadline)

    async def coordinator_address(self, kind: int, key: str, deadline: Deadline) -> Address:
        """Return where the coordinator of a group, a transactional id or ownership is."""
        address = self._coordinators.get((kind, key))
        if address is None:
            answer = await self.of_any_broker(
                partial(self._find_coordinator, kind, key, deadline), deadline
            )
            if answer.error_code:
                what = f"coordinator of {key}" if key else "coordinator"
                raise failure(error_code(answer.error_code), what, answer.error_message)
            address = (answer.host, answer.port)
            self._coordinators[kind, key] = address
        return address

    async def _find_coordinator(
        self, kind: int, key: str, deadline: Deadline, connection: Connection
    ) -> FindCoordinatorResponse:
        if kind == OWNERSHIP and ApiKey.OWN not in connection.versions:
            what = f"ownership at broker {connection.address}"
            raise failure(ErrorCode.UNSUPPORTED_VERSION, what)
        return await self.ask(
            connection,
            FindCoordinatorRequest(key=key, key_type=kind),
            FindCoordinatorResponse,
            deadline,
            FIND_COORDINATOR_VERSION_MAX,
        )

    async def ask_coordinator(
        self,
        kind: int,
        key: str,
        request: Message,
        response: type[R],
        deadline: Deadline,
        version_max: int = 1 << 15,
    ) -> R:
        """Send a request to a coordinator; the caller handles error codes in the response."""
        connection = await self.coordinator(kind, key, deadline)
        return await self.ask(connection, request, response, deadline, version_max)

    def forget_coordinator(self, kind: int, key: str) -> None:
        """Look a coordinator up again before it is used next."""
        self._coordinators.pop((kind, key), None)


def _exists(topic: MetadataResponseTopic) -> bool:
    return bool(topic.name) and topic.error_code in (
        ErrorCode.NONE,
        ErrorCode.LEADER_NOT_AVAILABLE,
    )


def _topic(topic: MetadataResponseTopic) -> TopicDescription:
    return TopicDescription(
        name=topic.name or "",
        topic_id=TopicId(topic.topic_id),
        internal=topic.is_internal,
        partitions=tuple(
            PartitionDescription(
                partition=p.partition_index,
                leader=p.leader_id,
                leader_epoch=p.leader_epoch,
                replicas=tuple(p.replica_nodes),
                in_sync=tuple(p.isr_nodes),
            )
            for p in sorted(topic.partitions, key=lambda p: p.partition_index)
        ),
    )
