"""An operator's elections: what each replica has, and which one leads (KIP-183, KIP-460)."""

import asyncio
from collections.abc import Sequence

from fencelog.client.admin import LATEST
from fencelog.client.cluster import Cluster
from fencelog.client.model import WIRE_ISOLATION, Isolation, ReplicaEnds
from fencelog.client.retry import retrying
from fencelog.errors import ErrorCode, RequestError
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
        named = TopicPartitions(topic=partition.topic, partitions=[partition.partition])
        request = ElectLeadersRequest(
            election_type=PREFERRED if leader is None else UNCLEAN,
            topic_partitions=[named],
            timeout_ms=int(self._cluster.options.request_timeout_s * 1000),
            leader=-1 if leader is None else leader,
        )
        deadline = self._cluster.deadline()
        lost = False

        async def attempt() -> None:
            nonlocal lost
            connection = await self._cluster.controller(deadline)
            try:
                answer = await self._cluster.ask(
                    connection, request, ElectLeadersResponse, deadline
                )
            except RequestError:
                lost = True
                raise
            results = [
                each for one in answer.replica_election_results for each in one.partition_result
            ]
            for code, text in [
                (answer.error_code, None),
                *((each.error_code, each.error_message) for each in results),
            ]:
                found = error_code(code)
                if found and not (lost and found is ErrorCode.ELECTION_NOT_NEEDED):
                    raise failure(found, f"election of a leader of {partition}", text)

        await retrying(attempt, deadline)
        self._cluster.forget(partition.topic)
