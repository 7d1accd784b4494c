"""Requests about topics, offsets, groups and the cluster."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from fencelog.client.cluster import GROUP, Cluster, ClusterView
from fencelog.client.isolation import isolation_level
from fencelog.client.leaders_of import ask_leaders
from fencelog.client.model import (
    ClusterDescription,
    Isolation,
    OffsetSpec,
    TopicDescription,
)
from fencelog.client.retry import retrying
from fencelog.errors import ErrorCode, RequestError
from fencelog.rpc.connection import Connection
from fencelog.rpc.deadline import Deadline
from fencelog.rpc.failures import failure
from fencelog.types import TopicPartition
from fencelog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from fencelog.wire.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from fencelog.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from fencelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from fencelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from fencelog.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from fencelog.wire.primitives import error_code

EARLIEST = -2
LATEST = -1
CONSUMER = -1
TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
LIST_OFFSETS_VERSION_MAX = 7
OFFSET_COMMIT_VERSION_MAX = 8
OFFSET_FETCH_VERSION_MAX = 7  # above it a request has a list of groups (KIP-709)
MAYBE_DONE = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.KAFKA_STORAGE_ERROR})
"""Errors of a change that may be stored, or will be."""


class Result(Protocol):
    """The result of a change in a response."""

    @property
    def error_code(self) -> int:
        """The error, or 0."""
        ...

    @property
    def error_message(self) -> str | None:
        """What went wrong."""
        ...


class Admin:
    """The requests of a client other than Produce and Fetch."""

    def __init__(self, cluster: Cluster) -> None:
        """Use the cluster's connections."""
        self._cluster = cluster

    # --- topics

    async def partitions(self, topics: Sequence[str]) -> dict[str, list[int]]:
        """Return the partition numbers of each topic."""
        found = {topic.name: topic for topic in await self.topics(topics)}
        return {name: [p.partition for p in found[name].partitions] for name in topics}

    async def topics(self, names: Sequence[str] | None = None) -> list[TopicDescription]:
        """Return these topics, or all, sorted by name."""
        view = await self._view(names)
        found = {topic.name for topic in view.topics}
        for name in names or ():
            if name not in found:
                raise failure(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} does not exist")
        return sorted(view.topics, key=lambda topic: topic.name)

    async def create_topic(
        self, name: str, partitions: int, configs: Mapping[str, str], replication: int
    ) -> None:
        """Create a topic; returns once its partitions have leaders."""
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=replication,
                    configs=[CreatableTopicConfig(name=k, value=v) for k, v in configs.items()],
                )
            ],
            timeout_ms=int(self._cluster.options.request_timeout_s * 1000),
        )

        async def send(connection: Connection, deadline: Deadline) -> Sequence[Result]:
            ask = self._cluster.ask(connection, request, CreateTopicsResponse, deadline)
            return (await ask).topics

        what = f"creation of topic {name}"
        await self.carry_out(what, send, done=ErrorCode.TOPIC_ALREADY_EXISTS)
        await self.led(name)

    async def led(self, name: str) -> None:
        """Return once the partitions of a new topic have leaders."""

        async def attempt() -> None:
            view = await self._view([name])
            if not any(all(p.leader >= 0 for p in topic.partitions) for topic in view.topics):
                raise failure(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {name} has no leaders yet")

        # A controller answers before the other brokers have heard of it.
        await retrying(attempt, self._cluster.deadline())

    async def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        timeout_ms = int(self._cluster.options.request_timeout_s * 1000)
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name)], topic_names=[name], timeout_ms=timeout_ms
        )

        async def send(connection: Connection, deadline: Deadline) -> Sequence[Result]:
            ask = self._cluster.ask(connection, request, DeleteTopicsResponse, deadline)
            return (await ask).responses

        what = f"deletion of topic {name}"
        await self.carry_out(what, send, done=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self._cluster.forget(name)

    async def carry_out(
        self,
        what: str,
        send: Callable[[Connection, Deadline], Awaitable[Sequence[Result]]],
        *,
        done: ErrorCode,
    ) -> None:
        """Send a request to the controller and retry until it succeeds.

        ``done`` is the error code of a retry if an earlier attempt succeeded whose response was
        lost, or said that the broker itself does not know.
        """
        deadline = self._cluster.deadline()
        lost = False

        async def attempt() -> None:
            nonlocal lost
            connection = await self._cluster.controller(deadline)
            try:
                results = await send(connection, deadline)
            except RequestError:
                lost = True
                raise
            for result in results:
                code = error_code(result.error_code)
                if code and not (lost and code is done):
                    lost = lost or code in MAYBE_DONE
                    raise failure(code, what, result.error_message)

        await retrying(attempt, deadline)

    async def describe_topic(self, name: str) -> TopicDescription:
        """Return a topic with its configs."""
        view = await self._view([name])
        if not view.topics:
            raise failure(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} does not exist")
        topic = view.topics[0]
        configs = await self._configs(TOPIC_RESOURCE, name, None)
        return TopicDescription(
            name=topic.name,
            topic_id=topic.topic_id,
            internal=topic.internal,
            partitions=topic.partitions,
            configs=configs,
        )

    # --- cluster

    async def cluster(self) -> ClusterDescription:
        """Return brokers, controller and cluster id."""
        view = await self._view([])
        return ClusterDescription(
            cluster_id=view.cluster_id, controller_id=view.controller_id, brokers=view.brokers
        )

    async def broker_configs(self, node_id: int) -> dict[str, str | None]:
        """Return a broker's configs."""
        return await self._configs(BROKER_RESOURCE, str(node_id), node_id)

    async def _configs(self, kind: int, name: str, node_id: int | None) -> dict[str, str | None]:
        resource = DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=None
        )
        deadline = self._cluster.deadline()

        async def attempt() -> dict[str, str | None]:
            connection = await self._broker(node_id, deadline)
            answer = await self._cluster.ask(
                connection,
                DescribeConfigsRequest(resources=[resource]),
                DescribeConfigsResponse,
                deadline,
            )
            for result in answer.results:
                if result.error_code:
                    raise failure(
                        error_code(result.error_code), f"configs of {name}", result.error_message
                    )
            return {
                config.name: config.value for result in answer.results for config in result.configs
            }

        return await retrying(attempt, deadline)

    # --- offsets

    async def offsets(
        self, partitions: Sequence[TopicPartition], spec: OffsetSpec, isolation: Isolation
    ) -> dict[TopicPartition, int]:
        """Return an offset of each partition, with one request per leader."""
        match spec:
            case "earliest":
                timestamp = EARLIEST
            case "latest":
                timestamp = LATEST
            case _:
                timestamp = spec
        find = partial(self._offsets_of, timestamp, isolation)
        found = await ask_leaders(self._cluster, partitions, find)
        return {partition: found[partition] for partition in partitions}

    async def _offsets_of(
        self,
        timestamp: int,
        isolation: Isolation,
        connection: Connection,
        partitions: Sequence[TopicPartition],
        deadline: Deadline,
    ) -> dict[TopicPartition, int]:
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for name, number in partitions:
            topics.setdefault(name, []).append(
                ListOffsetsPartition(partition_index=number, timestamp=timestamp)
            )
        request = ListOffsetsRequest(
            replica_id=CONSUMER,
            isolation_level=isolation_level(isolation, connection),
            topics=[ListOffsetsTopic(name=name, partitions=p) for name, p in topics.items()],
        )
        answer = await self._cluster.ask(
            connection, request, ListOffsetsResponse, deadline, LIST_OFFSETS_VERSION_MAX
        )
        found = {}
        for topic in answer.topics:
            for result in topic.partitions:
                partition = TopicPartition(topic.name, result.partition_index)
                if result.error_code:
                    raise failure(
                        error_code(result.error_code),
                        f"offsets of {partition} at broker {connection.address}",
                    )
                found[partition] = result.offset
        if missing := set(partitions) - set(found):
            raise failure(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"broker {connection.address} returned no offset for {min(missing)}",
            )
        return found

    # --- groups

    async def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets of a group without members: generation -1 and no member id."""
        if not offsets:
            return
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for (topic, partition), offset in offsets.items():
            topics.setdefault(topic, []).append(
                OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
            )
        request = OffsetCommitRequest(
            group_id=group,
            topics=[OffsetCommitRequestTopic(name=n, partitions=p) for n, p in topics.items()],
        )
        deadline = self._cluster.deadline()

        async def attempt() -> None:
            answer = await self._cluster.ask_coordinator(
                GROUP, group, request, OffsetCommitResponse, deadline, OFFSET_COMMIT_VERSION_MAX
            )
            for topic in answer.topics:
                for result in topic.partitions:
                    if result.error_code:
                        partition = TopicPartition(topic.name, result.partition_index)
                        raise failure(
                            error_code(result.error_code),
                            f"commit of {partition} for group {group}",
                        )

        await retrying(attempt, deadline, lambda: self._cluster.forget_coordinator(GROUP, group))

    async def committed_offsets(self, group: str) -> dict[TopicPartition, int]:
        """Return every committed offset of a group."""
        request = OffsetFetchRequest(group_id=group, topics=None, require_stable=True)
        deadline = self._cluster.deadline()

        async def attempt() -> dict[TopicPartition, int]:
            answer = await self._cluster.ask_coordinator(
                GROUP, group, request, OffsetFetchResponse, deadline, OFFSET_FETCH_VERSION_MAX
            )
            if answer.error_code:
                raise failure(error_code(answer.error_code), f"offsets of group {group}")
            found = {}
            for topic in answer.topics:
                for result in topic.partitions:
                    partition = TopicPartition(topic.name, result.partition_index)
                    if result.error_code:
                        raise failure(
                            error_code(result.error_code), f"offset of {partition} in group {group}"
                        )
                    if result.committed_offset >= 0:
                        found[partition] = result.committed_offset
            return found

        return await retrying(
            attempt, deadline, lambda: self._cluster.forget_coordinator(GROUP, group)
        )

    # --- inside

    async def _view(self, topics: Sequence[str] | None) -> ClusterView:
        return await self._cluster.metadata(topics, self._cluster.deadline())

    async def _broker(self, node_id: int | None, deadline: Deadline) -> Connection:
        """Return a connection to this broker, or to any broker if it is None or unknown."""
        address = None if node_id is None else self._cluster.address_of(node_id)
        if address is None:
            return await self._cluster.any_broker(deadline)
        return await self._cluster.connection(address, deadline)
