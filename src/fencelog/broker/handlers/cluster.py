"""ApiVersions, Metadata, FindCoordinator, DescribeCluster."""

from fencelog.broker.context import Broker
from fencelog.broker.dispatch import respond
from fencelog.broker.handlers.security import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from fencelog.broker.metadata.catalog import INTERNAL_TOPICS, Topic, name_problem
from fencelog.broker.network.connection import Answer, Connection, Request
from fencelog.errors import ErrorCode, RequestError
from fencelog.types import NO_TOPIC_ID, TopicId
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

WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound to
BY_ID_FROM = 12
"""Metadata versions 10 and 11 have a topic id in the request and cannot answer without a name."""
KEY_TYPES = (0, 1, 100)
"""Group, transaction, and fencelog's own: the group of a claim, "" where it has none (O6).

Share groups are not supported.
"""


def advertised(broker: Broker, connection: Connection) -> tuple[str, int]:
    """Return the address to give this client: the configured one, or the one it connected to."""
    config = broker.config
    if config.advertised_host is not None:
        return config.advertised_host, config.advertised_port or broker.address[1]
    host = connection.local[0] if config.host in WILDCARDS else config.host
    return host, broker.address[1]


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
    host, port = advertised(broker, request.connection)
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=broker.config.node_id, host=host, port=port)],
        cluster_id=broker.cluster_id,
        controller_id=broker.config.node_id,
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
        return MetadataResponseTopic(error_code=error, name=name, topic_id=NO_TOPIC_ID)
    return _described(broker, topic)


def _described(broker: Broker, topic: Topic) -> MetadataResponseTopic:
    node = broker.config.node_id
    # One list for all partitions: thousands of lists would trigger the garbage collector.
    here, nowhere = [node], list[int]()
    partitions = []
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


async def find_coordinator(
    broker: Broker, message: FindCoordinatorRequest, request: Request
) -> FindCoordinatorResponse:
    """Return this node, which has every coordinator."""
    host, port = advertised(broker, request.connection)
    node = broker.config.node_id
    known = message.key_type in KEY_TYPES
    error = ErrorCode.NONE if known else ErrorCode.INVALID_REQUEST
    text = None if known else f"key type {message.key_type} is not supported"
    if request.header.api_version < 4:
        if not known:
            return FindCoordinatorResponse(
                error_code=error, error_message=text, node_id=-1, port=-1
            )
        return FindCoordinatorResponse(error_message=None, node_id=node, host=host, port=port)
    return FindCoordinatorResponse(
        coordinators=[
            Coordinator(
                key=key,
                node_id=node if known else -1,
                host=host if known else "",
                port=port if known else -1,
                error_code=error,
                error_message=text,
            )
            async for key in broker.time_slices.each(message.coordinator_keys)
        ]
    )


async def describe_cluster(
    broker: Broker, message: DescribeClusterRequest, request: Request
) -> DescribeClusterResponse:
    """Describe the cluster's one node."""
    if message.endpoint_type != 1:
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"endpoint type {message.endpoint_type} is not supported, only 1",
            endpoint_type=message.endpoint_type,
        )
    host, port = advertised(broker, request.connection)
    node = broker.config.node_id
    return DescribeClusterResponse(
        cluster_id=broker.cluster_id,
        controller_id=node,
        brokers=[DescribeClusterBroker(broker_id=node, host=host, port=port)],
        cluster_authorized_operations=_of_cluster(message.include_cluster_authorized_operations),
    )
