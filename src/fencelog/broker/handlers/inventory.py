"""What a tool lists of a broker: DescribeLogDirs, ListConfigResources, reassignments, quotas.

There is one log directory, no partition ever moves, and no client has a quota.
"""

from collections.abc import Iterable, Mapping

from fencelog.broker.context import Broker
from fencelog.broker.handlers.configs import BROKER_RESOURCE, TOPIC_RESOURCE
from fencelog.broker.network.connection import Request
from fencelog.coordination.encoding import by_topic
from fencelog.errors import ErrorCode
from fencelog.storage.directory import DataDirectory
from fencelog.types import TopicPartition
from fencelog.wire.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from fencelog.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from fencelog.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from fencelog.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

BROKER_LOGGERS, CLIENT_METRICS, GROUPS = 8, 16, 32
_KINDS = (TOPIC_RESOURCE, BROKER_RESOURCE, BROKER_LOGGERS, CLIENT_METRICS, GROUPS)
"""The kinds of resources that may have settings; of the last three there is none here."""
_NO_OFFSET_LAG = -1
"""Kafka's value for an unknown one."""
KINDS_FROM = 1
"""From this version on ListConfigResources names kinds; before, it asks for client metrics."""


async def describe_log_dirs(
    broker: Broker, message: DescribeLogDirsRequest, request: Request
) -> DescribeLogDirsResponse:
    """Return the size of each partition, or of those named.

    One that is offline has a result of its own, with the path of its directory and an error, as a
    failed directory has in Kafka (KIP-112). Files are never moved between directories (KIP-113).
    """
    del request
    sizes: dict[TopicPartition, int] = {}
    offline: list[DescribeLogDirsResult] = []
    data_dir = broker.config.data_dir
    async for name in broker.time_slices.each(_named(broker, message)):
        partition = broker.logs.get(*name)
        if partition is not None:
            sizes[name] = partition.log.size
        elif name in broker.logs.offline():
            offline.append(
                DescribeLogDirsResult(
                    error_code=ErrorCode.KAFKA_STORAGE_ERROR,
                    log_dir=f"{data_dir}/{DataDirectory.path_of(name)}",
                    topics=_described({name: 0}, offset_lag=_NO_OFFSET_LAG),
                )
            )
    served = DescribeLogDirsResult(log_dir=data_dir, topics=_described(sizes))
    return DescribeLogDirsResponse(results=[served, *offline])


def _described(
    sizes: Mapping[TopicPartition, int], *, offset_lag: int = 0
) -> list[DescribeLogDirsTopic]:
    return [
        DescribeLogDirsTopic(
            name=topic,
            partitions=[
                DescribeLogDirsPartition(
                    partition_index=index,
                    partition_size=sizes[TopicPartition(topic, index)],
                    offset_lag=offset_lag,
                )
                for index in indexes
            ],
        )
        for topic, indexes in by_topic(sizes)
    ]


def _named(broker: Broker, message: DescribeLogDirsRequest) -> Iterable[TopicPartition]:
    if message.topics is None:
        return [*(partition.name for partition in broker.logs.partitions()), *broker.logs.offline()]
    return (
        TopicPartition(topic.topic, index) for topic in message.topics for index in topic.partitions
    )


async def list_config_resources(
    broker: Broker, message: ListConfigResourcesRequest, request: Request
) -> ListConfigResourcesResponse:
    """Return the resources of the kinds named, or of every kind, that have settings."""
    if request.header.api_version < KINDS_FROM:
        return ListConfigResourcesResponse()
    kinds = set(message.resource_types) or set(_KINDS)
    if not kinds <= set(_KINDS):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    found: list[ConfigResource] = []
    if TOPIC_RESOURCE in kinds:
        found += [
            ConfigResource(resource_name=topic.name, resource_type=TOPIC_RESOURCE)
            async for topic in broker.time_slices.each(broker.catalog.topics())
        ]
    if BROKER_RESOURCE in kinds:
        name = broker.settings.this_broker
        found.append(ConfigResource(resource_name=name, resource_type=BROKER_RESOURCE))
    return ListConfigResourcesResponse(config_resources=found)


async def list_partition_reassignments(
    broker: Broker, message: ListPartitionReassignmentsRequest, request: Request
) -> ListPartitionReassignmentsResponse:
    """Return none: a partition has one copy, which stays where it is."""
    del broker, message, request
    return ListPartitionReassignmentsResponse(error_message=None)


async def describe_client_quotas(
    broker: Broker, message: DescribeClientQuotasRequest, request: Request
) -> DescribeClientQuotasResponse:
    """Return none: no client is limited."""
    del broker, message, request
    return DescribeClientQuotasResponse(error_message=None)
