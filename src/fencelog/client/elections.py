"""An operator's elections: what each replica has, and which one leads (KIP-183, KIP-460)."""

import asyncio
from collections.abc import Sequence

from fencelog.client.admin import LATEST
from fencelog.client.cluster import Cluster
from fencelog.client.model import WIRE_ISOLATION, Isolation, ReplicaEnds
from fencelog.client.retry import retrying
from fencelog.errors import ErrorCode, RequestError
from fencelog.rpc.connection import Connection
from fencelog.rpc.deadline import Deadline
from fencelog.rpc.failures import failure
from fencelog.types import TopicPartition
from fencelog.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from fencelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from fencelog.wire.primitives import error_code

PREFERRED, UNCLEAN = 0, 1
NOT_NEEDED = ErrorCode.ELECTION_NOT_NEEDED
ANY_REPLICA = -2
"""As a replica id: answer whoever leads. Kafka's debugging consumer."""
ANSWER_S = 3.0
"""How long one replica may take to say where it ends."""


class Elections:
    """Requests of an operator who elects a partition's leader."""

    def __init__(self, cluster: Cluster) -> None:
        """Use the cluster's connections."""
        self._cluster = cluster

    async def replica_ends(
        self, partition: TopicPartition, replicas: Sequence[int]
    ) -> list[ReplicaEnds]:
        """Ask each replica's broker where its log ends; those that do not answer say why."""
        deadline = self._cluster.deadline()
        await self._cluster.metadata([], deadline)
        async with asyncio.TaskGroup() as tasks:
            asked = [
                tasks.create_task(self._ends(each, partition, deadline.within(ANSWER_S)))
                for each in replicas
            ]
        return [each.result() for each in asked]

    async def _ends(
        self, broker: int, partition: TopicPartition, deadline: Deadline
    ) -> ReplicaEnds:
        try:
            high_watermark = await self._end(broker, partition, "replicated", deadline)
            log_end = await self._end(broker, partition, "tail", deadline)
        except RequestError as error:
            return ReplicaEnds(broker=broker, problem=error.text)
        return ReplicaEnds(
            broker=broker,
            log_end_offset=log_end.offset,
            high_watermark=high_watermark.offset,
            last_epoch=log_end.leader_epoch,
        )

    async def _end(
        self, broker: int, partition: TopicPartition, level: Isolation, deadline: Deadline
    ) -> ListOffsetsPartitionResponse:
        what = f"the end of {partition} at broker {broker}"
        address = self._cluster.address_of(broker)
        if address is None:
            raise failure(ErrorCode.BROKER_NOT_AVAILABLE, what, f"broker {broker} is not live")
        connection = await self._cluster.connection(address, deadline)
        asked = ListOffsetsPartition(partition_index=partition.partition, timestamp=LATEST)
        request = ListOffsetsRequest(
            replica_id=ANY_REPLICA,
            isolation_level=WIRE_ISOLATION[level],
            topics=[ListOffsetsTopic(name=partition.topic, partitions=[asked])],
        )
        answer = await self._cluster.ask(connection, request, ListOffsetsResponse, deadline)
        (found,) = (each for topic in answer.topics for each in topic.partitions)
        if found.error_code:
            raise failure(error_code(found.error_code), what)
        return found

    async def elect(self, partition: TopicPartition, leader: int | None) -> None:
        """Elect ``leader`` uncleanly; None: the first replica, if it is in sync.

        An election whose answer was lost is not needed the second time. Raises RequestError
        (ELIGIBLE_LEADERS_NOT_AVAILABLE, PREFERRED_LEADER_NOT_AVAILABLE, ELECTION_NOT_NEEDED …).
        """
        named = [TopicPartitions(topic=partition.topic, partitions=[partition.partition])]
        deadline = self._cluster.deadline()
        lost = False

        async def attempt() -> None:
            nonlocal lost
            connection = await self._cluster.controller(deadline)
            try:
                answer = await self._ask(connection, named, leader, deadline)
            except RequestError:
                lost = True
                raise
            refused = _refusals(answer).get(partition)
            if refused is not None and not (lost and refused.code is NOT_NEEDED):
                raise refused

        await retrying(attempt, deadline)
        self._cluster.forget(partition.topic)

    async def elect_all(self) -> dict[TopicPartition, RequestError | None]:
        """Elect the first replica of every partition, where it is in sync and does not lead yet.

        Returns those partitions, each with the reason why its first replica was not elected, if it
        was not. If an answer was lost, those that were elected then are not among them. Raises
        RequestError.
        """
        deadline = self._cluster.deadline()

        async def attempt() -> dict[TopicPartition, RequestError | None]:
            connection = await self._cluster.controller(deadline)
            return _refusals(await self._ask(connection, None, None, deadline))

        found = await retrying(attempt, deadline)
        for topic in {each.topic for each in found}:
            self._cluster.forget(topic)
        return found

    async def _ask(
        self,
        connection: Connection,
        named: list[TopicPartitions] | None,
        leader: int | None,
        deadline: Deadline,
    ) -> ElectLeadersResponse:
        """Ask for elections: of ``leader``, uncleanly, or of first replicas; None: of all."""
        request = ElectLeadersRequest(
            election_type=PREFERRED if leader is None else UNCLEAN,
            topic_partitions=named,
            timeout_ms=int(self._cluster.options.request_timeout_s * 1000),
            leader=-1 if leader is None else leader,
        )
        return await self._cluster.ask(connection, request, ElectLeadersResponse, deadline)


def _refusals(answer: ElectLeadersResponse) -> dict[TopicPartition, RequestError | None]:
    """Return each answered partition, with why nobody was elected, or None. Raises RequestError."""
    if answer.error_code:
        raise failure(error_code(answer.error_code), "election of leaders")
    found: dict[TopicPartition, RequestError | None] = {}
    for topic in answer.replica_election_results:
        for each in topic.partition_result:
            name, code = TopicPartition(topic.topic, each.partition_id), each.error_code
            what = f"election of a leader of {name}"
            found[name] = failure(error_code(code), what, each.error_message) if code else None
    return found
