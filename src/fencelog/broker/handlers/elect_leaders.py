"""ElectLeaders (KIP-183, KIP-460)."""

from fencelog.broker.context import Broker
from fencelog.broker.metadata.catalog import Topic
from fencelog.broker.metadata.placement import ElectionType
from fencelog.broker.network.connection import Request
from fencelog.errors import ErrorCode, RequestError
from fencelog.types import NodeId
from fencelog.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

ANY = -1
"""As the leader to elect: the first live replica."""


async def elect_leaders(
    broker: Broker, message: ElectLeadersRequest, request: Request
) -> ElectLeadersResponse:
    """Elect each partition's leader, or return why not.

    Where all partitions are asked for, those that need no election are left out, as Kafka does.
    """
    if message.election_type not in tuple(ElectionType):
        return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
    kind = ElectionType(message.election_type)
    node = None if message.leader == ANY else NodeId(message.leader)
    asked = message.topic_partitions
    if asked is None:
        of_all = [(each.name, list(range(each.partitions))) for each in broker.catalog.topics()]
    else:
        of_all = [(each.topic, each.partitions) for each in asked]
    results = []
    async for name, numbers in broker.time_slices.each(of_all):
        result = ReplicaElectionResult(topic=name)
        results.append(result)
        topic = broker.catalog.get(name)
        async for index in broker.time_slices.each(numbers):
            refused = await _elect(broker, topic, index, kind, node)
            if refused is None:
                result.partition_result.append(
                    PartitionResult(partition_id=index, error_message=None)
                )
            elif asked is not None or refused.code is not ErrorCode.ELECTION_NOT_NEEDED:
                result.partition_result.append(
                    PartitionResult(
                        partition_id=index, error_code=refused.code, error_message=refused.text
                    )
                )
    return ElectLeadersResponse(replica_election_results=results)


async def _elect(
    broker: Broker, topic: Topic | None, index: int, kind: ElectionType, node: NodeId | None
) -> RequestError | None:
    if topic is None or not 0 <= index < topic.partitions:
        return RequestError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such topic or partition"
        )
    if broker.elections is None:
        return RequestError(ErrorCode.ELECTION_NOT_NEEDED, "there is one broker, which leads it")
    return await broker.elections.elect(topic.topic_id, index, kind, node)
