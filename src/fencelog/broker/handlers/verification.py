"""Before a producer's first write on a partition: is its transaction open, and is this in it?

Version notes: a client of transaction version 1 has asked for its partitions (AddPartitionsToTxn,
AddOffsetsToTxn), so the coordinator is only asked about them; for one of version 2 (KIP-890) the
question itself enlists them, durably, before anything is written (E14). Attempts of a versioned
transaction are enlisted so, too (V5).
"""

import asyncio
from collections.abc import Sequence

from fencelog.broker.context import Broker
from fencelog.broker.network.connection import Request
from fencelog.broker.partitions.partition import Partition
from fencelog.coordination.transaction.state import ClientVersion, ProducerIdAndEpoch
from fencelog.errors import ErrorCode, FencelogError, NotLeaderError, WireError
from fencelog.types import Instant, Offset, ProducerEpoch, ProducerId, TopicPartition
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.own import app_of


async def verify(
    broker: Broker,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    partitions: Sequence[TopicPartition],
    client_version: ClientVersion,
) -> dict[TopicPartition, ErrorCode]:
    """The coordinator's word on each partition, used with a guard taken before it was asked for.

    Raises NotLeaderError while the coordinator is not available.
    """
    if app_of(transactional_id) is not None:
        error = await broker.versioned.decide(
            transactional_id, lambda shard, now: shard.add_partitions(*producer, *partitions)
        )
        return dict.fromkeys(partitions, error)
    if client_version is ClientVersion.V2:
        error = await _add_partitions(broker, transactional_id, producer, partitions)
        return dict.fromkeys(partitions, error)
    errors = await broker.transactions.read(
        transactional_id,
        lambda shard: [shard.verify(transactional_id, *producer, each) for each in partitions],
    )
    return dict(zip(partitions, errors, strict=True))


async def _add_partitions(
    broker: Broker,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    partitions: Sequence[TopicPartition],
) -> ErrorCode:
    deadline = Instant(asyncio.get_running_loop().time() + broker.config.markers_wait_s)
    while True:
        loaded = await broker.transactions.shard_of(transactional_id)
        # Noted before the question: its answer waits, and the markers may come in meanwhile.
        seen = loaded.partition.log.log_end_offset
        error = await broker.transactions.decide_on(
            loaded,
            lambda shard, now: shard.add_partitions(
                transactional_id,
                *producer,
                partitions,
                client_version=ClientVersion.V2,
                wall_ms=broker.clock.now_ms(),
            ),
        )
        if error is not ErrorCode.CONCURRENT_TRANSACTIONS:
            return error
        if not await _next_step(loaded.partition, seen, deadline):
            return error


async def _next_step(coordinator: Partition, seen: Offset, deadline: Instant) -> bool:
    """Wait until the coordinator has committed more than was seen; False at the deadline."""
    try:
        async with asyncio.timeout_at(deadline):
            await coordinator.purgatory.committed(Offset(seen + 1))
    except TimeoutError:
        return False
    except FencelogError as error:
        raise NotLeaderError(f"{coordinator.name}: {error}") from error
    return True


def refuse_stale_connection(
    broker: Broker, request: Request, producer_id: int, producer_epoch: int
) -> None:
    """Close a connection that its producer has replaced by a newer one (E14).

    Raises WireError. No error code fits: a client would repeat a retriable one on this connection,
    and take any other for the outcome of its transaction. A client that has given the connection up
    does not notice that it is closed; any other opens a new one and sends the request again.
    """
    key = ApiKey(request.header.api_key)
    number = request.connection.number
    producer = ProducerId(producer_id), ProducerEpoch(producer_epoch)
    if producer_id >= 0 and not broker.stale_connections.accepts(*producer, key, number):
        raise WireError(
            f"{key.name} of producer {producer_id} (epoch {producer_epoch}) on a connection that is"
            " older than the one that it uses now"
        )
