"""One batch, appended only if nothing was appended since its sender has read (R4).

It is sent once and carries no sequence: the condition makes sure that it is stored once at most,
and who gets no answer reads on to find out.
"""

from fencelog.client.cluster import Cluster
from fencelog.client.retry import STALE_ROUTE
from fencelog.errors import ErrorCode, WireError
from fencelog.rpc.connection import Connection
from fencelog.rpc.deadline import Deadline
from fencelog.rpc.failures import failure
from fencelog.types import Buffer, TopicId, TopicPartition
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.hot import PartitionResult, read_produce_response, write_produce_request
from fencelog.wire.hot.append_tags import AppendTags, Revision

TAGS_FROM = 9
PRODUCE_VERSION_MAX = 11


async def append_if_unchanged(
    cluster: Cluster,
    partition: TopicPartition,
    batch: Buffer,
    topic_id: TopicId,
    condition: Revision,
    deadline: Deadline,
) -> int:
    """Append one batch to this topic, and return the leader epoch in which it was sent.

    That is at most the one in which it was stored, so as a revision it never matches another log.
    Raises RequestError: STALE_REVISION if something was appended since, UNKNOWN_TOPIC_ID if another
    topic has the name, or the broker has not heard of this one yet; after an error that is
    retriable it may be stored or not.
    """
    known = cluster.leader_epoch(partition)
    connection = await cluster.leader(partition, deadline)
    if ApiKey.CREATE_STREAM not in connection.versions:
        # It would be stored without a look at the condition.
        what = f"conditional append at broker {connection.address}"
        raise failure(ErrorCode.UNSUPPORTED_VERSION, what)
    leader_epoch = cluster.leader_epoch(partition)
    if known >= 0:
        leader_epoch = min(known, leader_epoch)  # it may have been looked up anew meanwhile
    _, high = connection.versions.get(ApiKey.PRODUCE, (0, 0))
    version = min(high, PRODUCE_VERSION_MAX)
    limit = cluster.request_deadline(deadline)
    body = write_produce_request(
        version,
        None,
        -1,
        int(limit.left_s * 1000),
        [(partition.topic, [(partition.partition, batch)])],
        {(partition.topic, partition.partition): AppendTags(None, condition, topic_id)},
    )
    answer = await connection.call(ApiKey.PRODUCE, version, body, limit)
    result = _result(cluster, connection, partition, answer, version)
    if result.error:
        what = f"conditional append to {partition} at broker {connection.address}"
        raise failure(result.error, what, result.error_message)
    if result.base_offset != condition.offset:
        raise failure(
            ErrorCode.UNSUPPORTED_VERSION,
            f"conditional append to {partition} at broker {connection.address}",
            f"it was stored at offset {result.base_offset} instead of {condition.offset}",
        )
    return leader_epoch


def _result(
    cluster: Cluster,
    connection: Connection,
    partition: TopicPartition,
    answer: memoryview,
    version: int,
) -> PartitionResult:
    try:
        topics, _, endpoints = read_produce_response(answer, version)
    except WireError as error:
        connection.close(f"malformed response to Produce: {error}")
        what = f"Produce to {connection.address}"
        raise failure(ErrorCode.NETWORK_EXCEPTION, what, str(error)) from error
    for name, results in topics:
        for result in results:
            if (name, result.partition) == partition:
                is_moved = cluster.learn(partition, result.current_leader, endpoints)
                if result.error in STALE_ROUTE and not is_moved:
                    cluster.forget(partition.topic)
                return result
    text = f"the response of broker {connection.address} lacks {partition}"
    connection.close(text)
    raise failure(ErrorCode.NETWORK_EXCEPTION, text)
