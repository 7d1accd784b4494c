"""Changes to an existing topic: its configs, its partition count, its log starts."""

from collections.abc import Collection, Mapping
from functools import partial

from fencelog.client.cluster import Cluster
from fencelog.client.leaders_of import ask_leaders
from fencelog.client.retry import retrying
from fencelog.errors import ErrorCode, RequestError
from fencelog.rpc.connection import Connection
from fencelog.rpc.deadline import Deadline
from fencelog.rpc.failures import failure
from fencelog.types import TopicPartition
from fencelog.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from fencelog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from fencelog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from fencelog.wire.primitives import error_code

TOPIC_RESOURCE = 2
SET = 0
UNSET = 1
TO_HIGH_WATERMARK = -1
"""As an offset: the high watermark."""


class TopicChanges:
    """Requests that change existing topics."""

    def __init__(self, cluster: Cluster) -> None:
        """Use the cluster's connections."""
        self._cluster = cluster

    async def configure(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Set these configs of a topic; None resets one to the broker's default. Others stay."""
        configs = [
            AlterableConfig(name=key, config_operation=UNSET if value is None else SET, value=value)
            for key, value in changes.items()
        ]
        resource = AlterConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name=name, configs=configs
        )
        request = IncrementalAlterConfigsRequest(resources=[resource])
        deadline = self._cluster.deadline()

        async def attempt() -> None:
            connection = await self._cluster.controller(deadline)
            answer = await self._cluster.ask(
                connection, request, IncrementalAlterConfigsResponse, deadline
            )
            for result in answer.responses:
                if result.error_code:
                    raise failure(
                        error_code(result.error_code), f"configs of {name}", result.error_message
                    )

        await retrying(attempt, deadline)

    async def add_partitions(self, name: str, count: int) -> None:
        """Raise a topic's partition count to ``count``."""
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=name, count=count, assignments=None)],
            timeout_ms=int(self._cluster.options.request_timeout_s * 1000),
        )
        deadline = self._cluster.deadline()
        lost = False

        async def attempt() -> None:
            nonlocal lost
            connection = await self._cluster.controller(deadline)
            try:
                answer = await self._cluster.ask(
                    connection, request, CreatePartitionsResponse, deadline
                )
            except RequestError:
                lost = True
                raise
            for result in answer.results:
                code = error_code(result.error_code)
                # After a lost response the topic may have this many partitions already.
                if code and not (lost and await self._count(name, deadline) == count):
                    raise failure(code, f"partitions of {name}", result.error_message)

        await retrying(attempt, deadline)
        self._cluster.forget(name)

    async def _count(self, name: str, deadline: Deadline) -> int:
        view = await self._cluster.metadata([name], deadline)
        return max((len(topic.partitions) for topic in view.topics), default=0)

    async def delete_records(
        self, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Raise each partition's log start to this offset (-1: HW); return the log starts."""
        return await ask_leaders(self._cluster, offsets, partial(self._delete, offsets))

    async def _delete(
        self,
        offsets: Mapping[TopicPartition, int],
        connection: Connection,
        partitions: Collection[TopicPartition],
        deadline: Deadline,
    ) -> dict[TopicPartition, int]:
        topics: dict[str, list[DeleteRecordsPartition]] = {}
        for partition in partitions:
            topics.setdefault(partition.topic, []).append(
                DeleteRecordsPartition(
                    partition_index=partition.partition, offset=offsets[partition]
                )
            )
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=name, partitions=p) for name, p in topics.items()],
            timeout_ms=int(self._cluster.options.request_timeout_s * 1000),
        )
        answer = await self._cluster.ask(connection, request, DeleteRecordsResponse, deadline)
        found = {}
        for topic in answer.topics:
            for result in topic.partitions:
                partition = TopicPartition(topic.name, result.partition_index)
                if result.error_code:
                    raise failure(
                        error_code(result.error_code),
                        f"deletion of records of {partition} before {offsets[partition]}",
                    )
                found[partition] = result.low_watermark
        if missing := set(partitions) - set(found):
            raise failure(ErrorCode.UNKNOWN_SERVER_ERROR, f"the response lacks {min(missing)}")
        return found
