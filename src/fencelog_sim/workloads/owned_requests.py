"""What owners and others ask of partitions and groups, in raw messages, each once."""

from fencelog.check.history import key_of
from fencelog.client.cluster import GROUP, Cluster
from fencelog.errors import ErrorCode, RequestError
from fencelog.rpc.connection import Connection
from fencelog.rpc.deadline import Deadline
from fencelog.rpc.failures import failure
from fencelog.types import TopicPartition
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.batch import read_header
from fencelog.wire.hot import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    read_fetch_response,
    read_produce_response,
    write_fetch_request,
    write_produce_request,
)
from fencelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from fencelog.wire.own import owned_id, producers_key
from fencelog.wire.primitives import error_code
from fencelog.wire.records import RecordToWrite, build_batch
from fencelog_sim.workload import Stage
from fencelog_sim.workloads.owned_offsets import PATIENCE_S, OffsetProducer
from fencelog_sim.workloads.routes import coordinated, coordinator_of, dial

READERS = "readers"
"""The only group."""
NAMES = ("etl", "sink")
"""Of the claims' transactional ids."""
HOWS = ("commit", "commit", "abort", "desert")
"""What becomes of a transaction."""
NOBODY = "-"
"""What the session begins with in what is written without a claim."""
PRODUCE_VERSION = 9
FETCH_VERSION = 12
COMMIT_VERSION_MAX = 9
FETCH_WAIT_MS = 400
FETCH_BYTES = 16 << 10
OTHERS_TIMEOUT_MS = 1_000
"""Of transactions without a claim: while one is open, nobody sees the group's offsets."""
REFUSALS = frozenset(
    {
        ErrorCode.OWNER_FENCED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
    }
)
"""Whoever is not the owner gets one of these, and nothing is written (O8)."""
TRANSACTIONAL_SHARE = 0.5
"""Of the commits without a claim, those in a transaction."""
IMPOSTOR_SHARE = 0.2


async def send_once(
    stage: Stage, connection: Connection, partition: TopicPartition, value: str, session: str
) -> None:
    """Write one record without a producer id, and never again. Raises RequestError."""
    now_ms = int(stage.now() * 1000)
    batch = build_batch([RecordToWrite(None, value.encode(), now_ms)])
    named = {"session": session, "partition": key_of(*partition), "value": value}
    stage.history.note(what="write", **named)
    topics = [(partition.topic, [(partition.partition, memoryview(batch))])]
    timeout_ms = int(PATIENCE_S * 1000)
    body = write_produce_request(PRODUCE_VERSION, None, -1, timeout_ms, topics)
    answer = await connection.call(ApiKey.PRODUCE, PRODUCE_VERSION, body, Deadline(PATIENCE_S))
    ((_, (result,)),), *_ = read_produce_response(answer, PRODUCE_VERSION)
    if result.error:
        if result.error in REFUSALS:
            stage.history.note(what="write refused", error=result.error.name, **named)
        raise failure(result.error, f"write to {partition}", result.error_message)
    stage.history.note(what="wrote", offset=result.base_offset, **named)


async def fetch(
    connection: Connection, partition: TopicPartition, position: int
) -> list[memoryview]:
    """Return the batches of one fetch, control records and uncommitted ones included.

    Raises RequestError.
    """
    asked = FetchPartition(partition.partition, -1, position, -1, FETCH_BYTES)
    topics = [FetchTopic(partition.topic, None, [asked])]
    request = FetchRequest(-1, FETCH_WAIT_MS, 1, FETCH_BYTES, 0, 0, -1, topics)
    body = await connection.call(
        ApiKey.FETCH,
        FETCH_VERSION,
        [write_fetch_request(FETCH_VERSION, request)],
        Deadline(PATIENCE_S),
    )
    answer = read_fetch_response(body, FETCH_VERSION)
    ((found,),) = (topic.partitions for topic in answer.topics)
    if found.error:
        raise failure(found.error, f"fetch of {partition}")
    data = memoryview(b"".join(found.records))
    batches = []
    while data:
        size = read_header(data).size
        if size > len(data):
            break  # cut off at the end of the answer
        batches.append(data[:size])
        data = data[size:]
    return batches


async def commit_offset(
    cluster: Cluster,
    connection: Connection,
    group: str,
    partition: TopicPartition,
    offset: int,
    metadata: str,
) -> None:
    """Commit one offset, without a member. Raises RequestError."""
    asked = OffsetCommitRequestPartition(
        partition_index=partition.partition, committed_offset=offset, committed_metadata=metadata
    )
    topics = [OffsetCommitRequestTopic(name=partition.topic, partitions=[asked])]
    answer = await cluster.ask(
        connection,
        OffsetCommitRequest(group_id=group, topics=topics),
        OffsetCommitResponse,
        Deadline(PATIENCE_S),
        COMMIT_VERSION_MAX,
    )
    ((result,),) = (topic.partitions for topic in answer.topics)
    raise_for(result.error_code, f"commit of {partition} for group {group}")


async def commit_as_nobody(
    stage: Stage, cluster: Cluster, partition: TopicPartition, value: str
) -> None:
    """Commit an offset of the readers without a claim, once, on a connection of its own.

    Raises RequestError.
    """
    named = {"partition": key_of(*partition), "metadata": value}
    with coordinated(cluster, GROUP, READERS):
        connection = await dial(stage, await coordinator_of(stage, cluster, GROUP, READERS))
        try:
            stage.history.note(what="nobody commits", **named)
            await commit_offset(cluster, connection, READERS, partition, 0, value)
        finally:
            connection.close()
    stage.history.note(what="nobody committed", **named)


async def transact_as_nobody(
    stage: Stage, cluster: Cluster, partition: TopicPartition, value: str
) -> None:
    """Commit an offset of the readers in a transaction without a claim. Raises RequestError.

    Some name the transactional id of a claim, with a producer id that is not its.
    """
    random = stage.random
    producer = await OffsetProducer.open(
        stage, cluster, READERS, f"of {stage.history.process}", OTHERS_TIMEOUT_MS
    )
    await producer.begin()
    named = {"partition": key_of(*partition), "metadata": value, "is_pending": True}
    as_whom = None
    if random.random() < IMPOSTOR_SHARE:
        as_whom = owned_id(producers_key(READERS, random.choice(NAMES)), random.randint(1, 9))
    stage.history.note(what="nobody commits", **named)
    await producer.commit(partition, 0, value, as_whom)
    stage.history.note(what="nobody committed", **named)
    how = random.choice(HOWS)
    if how != "desert":
        await producer.end(commit=how == "commit")


def raise_for(code: int, what: str) -> None:
    """Raise RequestError for an error."""
    if code:
        raise RequestError(error_code(code), what)
