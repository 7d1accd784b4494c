"""Writes records to chosen segments of a stream, for tests of what reads it."""

from fencelog.client.blocking import Client
from fencelog.client.cluster import Cluster
from fencelog.errors import ErrorCode
from fencelog.types import TopicPartition
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.hot import AppendTags, read_produce_response, write_produce_request
from fencelog.wire.records import RecordToWrite, build_batch

VERSION = 12


def write(client: Client, topic: str, segment: int, *values: str) -> None:
    """Append a batch to a segment; AssertionError if the segment refuses it."""
    rows = [RecordToWrite(each.encode(), each.encode(), 0, ()) for each in values]
    body = write_produce_request(
        VERSION,
        None,
        -1,
        10_000,
        [(topic, [(segment, build_batch(rows))])],
        {(topic, segment): AppendTags(median_hash=-1)},
    )

    async def send(cluster: Cluster) -> memoryview:
        deadline = cluster.deadline()
        connection = await cluster.leader(TopicPartition(topic, segment), deadline)
        return await connection.call(ApiKey.PRODUCE, VERSION, body, deadline)

    response = read_produce_response(client.run(send), VERSION)
    (result,) = [each for _, results in response.topics for each in results]
    assert result.error is ErrorCode.NONE, result
