"""ApiVersions, Metadata, FindCoordinator, DescribeCluster."""

import asyncio
from contextlib import suppress

from fencelog.broker.context import Broker
from fencelog.broker.dispatch import respond
from fencelog.broker.handlers.brokers import advertised, controller_id, endpoints, state_of
from fencelog.broker.handlers.security import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from fencelog.broker.metadata.catalog import (
    GROUP_TOPIC,
    INTERNAL_TOPICS,
    OWNERSHIP_TOPIC,
    TRANSACTION_TOPIC,
    VERSIONED_TOPIC,
    Topic,
    name_problem,
)
from fencelog.broker.metadata.placement import Placement
from fencelog.broker.network.connection import Answer, Connection, Request
from fencelog.coordination.controller.model import NO_LEADER, PartitionState, Registration
from fencelog.coordination.shard import partition_for
from fencelog.errors import ErrorCode, NotLeaderError, RequestError
from fencelog.types import NO_TOPIC_ID, Instant, LeaderEpoch, TopicId
from fencelog.wire.api_versions import (
    FEATURES_EPOCH,
    FEATURES_FROM_ZERO,
    SUPPORTED,
    TRANSACTION_VERSION,
    TRANSACTION_VERSION_FEATURE,
    ApiKey,
)
from fencelog.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from fencelog.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from fencelog.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from fencelog.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from fencelog.wire.own import app_of, coordinated_by

BY_ID_FROM = 12
"""Metadata versions 10 and 11 have a topic id in the request and cannot answer without a name."""
GROUP_KEY, TRANSACTION_KEY, OWNERSHIP_KEY = KEY_TYPES = (0, 1, 100)
"""Group, transaction, and fencelog's own: the group of a claim, "" where it has none (O6).

Share groups are not supported.
"""


_UNKNOWN = PartitionState((), NO_LEADER, LeaderEpoch(-1), ())


def api_versions(broker: Broker, request: Request) -> Answer:
    """Return the supported versions; an unknown version is answered in version 0 (KIP-511)."""
    del broker
    version = request.header.api_version
    known = SUPPORTED[ApiKey.API_VERSIONS]
    if not known.minimum <= version <= known.maximum:
        refusal = ApiVersionsResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION,
            api_keys=[
                ApiVersion(
                    api_key=ApiKey.API_VERSIONS,
                    min_version=known.minimum,
                    max_version=known.maximum,
                )
            ],
        )
        return respond(request, refusal.write(0))
    ApiVersionsRequest.read(request.body, version)
    spoken = _ALL_VERSIONS if version >= FEATURES_FROM_ZERO else _WITHOUT_SUPPORTED_FEATURES
    return respond(request, spoken.write(version))


def _all_versions(supported: list[SupportedFeatureKey]) -> ApiVersionsResponse:
    finalized = FinalizedFeatureKey(
        name=TRANSACTION_VERSION_FEATURE,
        min_version_level=TRANSACTION_VERSION.maximum,
        max_version_level=TRANSACTION_VERSION.maximum,
    )
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(api_key=key, min_version=spoken.minimum, max_version=spoken.maximum)
            for key, spoken in SUPPORTED.items()
        ],
        supported_features=supported,
        finalized_features_epoch=FEATURES_EPOCH,
        finalized_features=[finalized],
    )


_ALL_VERSIONS = _all_versions(
    [
        SupportedFeatureKey(
            name=TRANSACTION_VERSION_FEATURE,
            min_version=TRANSACTION_VERSION.minimum,
            max_version=TRANSACTION_VERSION.maximum,
        )
    ]
)
_WITHOUT_SUPPORTED_FEATURES = _all_versions([])


async def metadata(broker: Broker, message: MetadataRequest, request: Request) -> MetadataResponse:
    """Describe topics; create named ones that are missing if client and broker allow it."""
    version = request.header.api_version
    topics: list[MetadataResponseTopic] = []
    if message.topics is None or (version == 0 and not message.topics):
        every = broker.time_slices.each(broker.catalog.topics())
        topics = [_described(broker, topic) async for topic in every]
    else:
        creating = broker.config.auto_create_topics and (
            version < 4 or message.allow_auto_topic_creation
        )
        # Each once, even if it is named twice. With an id the name is ignored: Java's is empty.
        named = {
            (requested.name if requested.topic_id == NO_TOPIC_ID else None, requested.topic_id)
            for requested in message.topics
        }
        in_order = sorted(named, key=lambda one: (one[0] or "", one[1]))
        async for name, topic_id in broker.time_slices.each(in_order):
            if name is None and version < BY_ID_FROM:
                error = ErrorCode.INVALID_REQUEST
                topics.append(MetadataResponseTopic(error_code=error, name="", topic_id=topic_id))
            elif name is None:
                topics.append(_by_id(broker, topic_id))
            else:
                topics.append(await _by_name(broker, name, creating=creating))
    if message.include_topic_authorized_operations:
        for topic in topics:
            if topic.error_code == ErrorCode.NONE:
                topic.topic_authorized_operations = TOPIC_OPERATIONS
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=node_id, host=host, port=port, rack=rack)
            for node_id, host, port, rack in endpoints(broker, request.connection)
        ],
        cluster_id=broker.cluster_id,
        controller_id=controller_id(broker),
        topics=topics,
        cluster_authorized_operations=_of_cluster(message.include_cluster_authorized_operations),
    )


def _of_cluster(is_asked: bool) -> int:
    return CLUSTER_OPERATIONS if is_asked else NOT_ASKED


def _by_id(broker: Broker, topic_id: bytes) -> MetadataResponseTopic:
    topic = broker.catalog.by_id(TopicId(topic_id))
    if topic is None:
        return MetadataResponseTopic(
            error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id
        )
    return _described(broker, topic)


async def _by_name(broker: Broker, name: str, *, creating: bool) -> MetadataResponseTopic:
    topic = broker.catalog.get(name)
    error = ErrorCode.NONE
    if topic is None:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if name_problem(name) is not None:
            error = ErrorCode.INVALID_TOPIC_EXCEPTION
        elif creating and name not in INTERNAL_TOPICS:
            try:
                topic = await broker.controller.create_topic(name, broker.config.num_partitions, {})
            except RequestError as refused:
                error = refused.code
                # Two clients may create the same topic at once; both get it.
                topic = broker.catalog.get(name)
                if topic is None:
                    broker.limited_log.warning(
                        Instant(asyncio.get_running_loop().time()),
                        "auto-creation",
                        "a client asks for topic %s, which cannot be created: %s",
                        name,
                        refused.text,
                    )
    if topic is None:
        return MetadataResponseTopic(error_code=error, name=name, topic_id=NO_TOPIC_ID)
    return _described(broker, topic)


def _described(broker: Broker, topic: Topic) -> MetadataResponseTopic:
    if broker.placement is not None:
        return _described_in_cluster(broker, broker.placement, topic)
    node = broker.config.node_id
    # One list for all partitions: thousands of lists would trigger the garbage collector.
    here, nowhere = [node], list[int]()
    partitions = []
    # Of a stream also the segments that are opening: clients number partitions by their count.
    for index in range(topic.partitions):
        partition = broker.logs.get(topic.name, index)
        online = partition is not None or topic.internal
        partitions.append(
            MetadataResponsePartition(
                error_code=ErrorCode.NONE if online else ErrorCode.LEADER_NOT_AVAILABLE,
                partition_index=index,
                leader_id=node if online else -1,
                leader_epoch=partition.log.leader_epoch if partition is not None else 0,
                replica_nodes=here,
                isr_nodes=here,
                offline_replicas=nowhere if online else here,
            )
        )
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=partitions,
    )


def _described_in_cluster(
    broker: Broker, placement: Placement, topic: Topic
) -> MetadataResponseTopic:
    live = {each.node_id for each in placement.brokers()}
    partitions = []
    for index in range(topic.partitions):
        led = state_of(broker, topic, index)
        state = led or placement.partition(topic.topic_id, index) or _UNKNOWN
        partitions.append(
            MetadataResponsePartition(
                error_code=ErrorCode.NONE if led else ErrorCode.LEADER_NOT_AVAILABLE,
                partition_index=index,
                leader_id=state.leader if led else NO_LEADER,
                leader_epoch=state.leader_epoch,
                replica_nodes=list(state.replicas),
                isr_nodes=list(state.isr),
                offline_replicas=[each for each in state.replicas if each not in live],
            )
        )
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=partitions,
    )


async def find_coordinator(
    broker: Broker, message: FindCoordinatorRequest, request: Request
) -> FindCoordinatorResponse:
    """Return the broker that has the coordinator of each key."""
    if request.header.api_version < 4:
        found = await _coordinator(broker, message.key_type, message.key, request.connection)
        return FindCoordinatorResponse(
            error_code=found.error_code,
            error_message=found.error_message,
            node_id=found.node_id,
            host=found.host,
            port=found.port,
        )
    return FindCoordinatorResponse(
        coordinators=[
            await _coordinator(broker, message.key_type, key, request.connection)
            async for key in broker.time_slices.each(message.coordinator_keys)
        ]
    )


async def _coordinator(
    broker: Broker, key_type: int, key: str, connection: Connection
) -> Coordinator:
    if key_type not in KEY_TYPES:
        error, text = ErrorCode.INVALID_REQUEST, f"key type {key_type} is not supported"
    elif broker.placement is None:
        host, port = advertised(broker, connection)
        node_id = broker.config.node_id
        return Coordinator(key=key, node_id=node_id, host=host, port=port, error_message=None)
    else:
        topic_name, hashed = coordinator_key(key_type, key)
        try:
            leader = await _leader_of_shard(broker, topic_name, hashed)
        except NotLeaderError as problem:
            error, text = ErrorCode.COORDINATOR_NOT_AVAILABLE, str(problem)
        else:
            return Coordinator(
                key=key,
                node_id=leader.node_id,
                host=leader.host,
                port=leader.port,
                error_message=None,
            )
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error, error_message=text)


def coordinator_key(key_type: int, key: str) -> tuple[str, str]:
    """Return the internal topic of a coordinator, and the key whose hash selects its partition."""
    if key_type == GROUP_KEY:
        return GROUP_TOPIC, key
    if key_type == TRANSACTION_KEY:
        is_versioned = app_of(key) is not None
        return (VERSIONED_TOPIC, key) if is_versioned else (TRANSACTION_TOPIC, coordinated_by(key))
    return OWNERSHIP_TOPIC, key


async def _leader_of_shard(broker: Broker, topic_name: str, key: str) -> Registration:
    """Return the broker that leads a shard's partition; creates the topic when it is first used.

    Raises NotLeaderError while nobody leads it.
    """
    assert broker.placement is not None
    topic = broker.catalog.get(topic_name)
    if topic is None:
        # Led elsewhere or not known yet: what matters is that the topic is created.
        with suppress(NotLeaderError):
            await broker.controller.open_internal(topic_name, 0)
        topic = broker.catalog.get(topic_name)
    if topic is None:
        raise NotLeaderError(f"there is no topic {topic_name} yet")
    index = partition_for(key, topic.partitions)
    state = state_of(broker, topic, index)
    leader = None if state is None else broker.placement.broker(state.leader)
    if leader is None:
        raise NotLeaderError(f"{topic_name}-{index} has no leader now")
    return leader


async def describe_cluster(
    broker: Broker, message: DescribeClusterRequest, request: Request
) -> DescribeClusterResponse:
    """Describe the cluster's live brokers."""
    if message.endpoint_type != 1:
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"endpoint type {message.endpoint_type} is not supported, only 1",
            endpoint_type=message.endpoint_type,
        )
    return DescribeClusterResponse(
        cluster_id=broker.cluster_id,
        controller_id=controller_id(broker),
        brokers=[
            DescribeClusterBroker(broker_id=node_id, host=host, port=port, rack=rack)
            for node_id, host, port, rack in endpoints(broker, request.connection)
        ],
        cluster_authorized_operations=_of_cluster(message.include_cluster_authorized_operations),
    )
