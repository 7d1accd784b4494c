"""How much memory a response may take that is larger than its request, before it is built.

The handler waits for a grant of so much (``broker/network/response_budget``): else a thousand small
requests for everything there is would be answered at once. The figures are what the decoded and the
encoded form take, measured and rounded up.
"""

from fencelog.broker.context import Broker
from fencelog.broker.handlers.ownership import ENTRY_BYTES, PAGE_MAX
from fencelog.wire.messages.describe_configs import DescribeConfigsRequest
from fencelog.wire.messages.describe_groups import DescribeGroupsRequest
from fencelog.wire.messages.describe_ownership import DescribeOwnershipRequest
from fencelog.wire.messages.describe_streams import DescribeStreamsRequest
from fencelog.wire.messages.describe_unread import DescribeUnreadRequest
from fencelog.wire.messages.list_offsets import ListOffsetsRequest
from fencelog.wire.messages.metadata import MetadataRequest
from fencelog.wire.messages.offset_fetch import OffsetFetchRequest
from fencelog.wire.messages.release_ownership import ReleaseOwnershipRequest

TOPIC_BYTES = 512
PARTITION_BYTES = 256
CONFIGS_BYTES = 32 * 1024
GROUP_BYTES = 16 * 1024


def of_metadata(broker: Broker, message: MetadataRequest) -> int:
    """Return the bytes for all topics, or for those that are named."""
    if not message.topics:
        return broker.catalog.partition_total * (TOPIC_BYTES + PARTITION_BYTES)
    partitions = 0
    for name in {requested.name for requested in message.topics}:
        topic = None if name is None else broker.catalog.get(name)
        partitions += topic.partitions if topic is not None else 0
    return len(message.topics) * TOPIC_BYTES + partitions * PARTITION_BYTES


def of_configs(broker: Broker, message: DescribeConfigsRequest) -> int:
    """Return the bytes for the settings of each resource."""
    del broker
    return len(message.resources) * CONFIGS_BYTES


def of_streams(broker: Broker, message: DescribeStreamsRequest) -> int:
    """Return the bytes for all streams, or for those that are named."""
    if message.names is None:
        topics = [each for each in broker.catalog.topics() if each.stream is not None]
    else:
        topics = [each for name in set(message.names) if (each := broker.catalog.get(name))]
    segments = sum(topic.partitions for topic in topics if topic.stream is not None)
    return max(len(topics), len(message.names or ())) * TOPIC_BYTES + segments * PARTITION_BYTES


def of_groups(broker: Broker, message: DescribeGroupsRequest) -> int:
    """Return the bytes for the named groups, with a few members each."""
    del broker
    return len(message.groups) * GROUP_BYTES


def of_list_offsets(broker: Broker, message: ListOffsetsRequest) -> int:
    """Return the bytes for the named partitions."""
    del broker
    return sum(len(topic.partitions) for topic in message.topics) * PARTITION_BYTES


def of_unread(broker: Broker, message: DescribeUnreadRequest) -> int:
    """Return the bytes for the named partitions."""
    del broker
    return sum(len(topic.partitions) for topic in message.topics) * PARTITION_BYTES


def of_offset_fetch(broker: Broker, message: OffsetFetchRequest) -> int:
    """Return the bytes for the named groups and partitions."""
    del broker
    groups = [message.topics, *(group.topics for group in message.groups)]
    named = sum(len(topic.partition_indexes) for topics in groups for topic in topics or ())
    return len(message.groups) * TOPIC_BYTES + named * PARTITION_BYTES


def of_ownership(broker: Broker, message: DescribeOwnershipRequest) -> int:
    """Return the bytes for a page, or for the named resources."""
    del broker
    named = PAGE_MAX if message.resources is None else len(message.resources)
    return min(named, max(message.limit, 0), PAGE_MAX) * ENTRY_BYTES


def of_released(broker: Broker, message: ReleaseOwnershipRequest) -> int:
    """Return the bytes for the named resources; a claim's own were in a request as large."""
    del broker
    return len(message.resources) * ENTRY_BYTES
