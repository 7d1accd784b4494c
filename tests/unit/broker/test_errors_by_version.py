"""Each refusal of a producer in the code that its version of the request knows: one table.

The codes are Kafka's: the coordinator says PRODUCER_FENCED from certain versions on, a partition
never does; TRANSACTION_ABORTABLE came with KIP-890, before it INVALID_TXN_STATE said the same.
"""

from collections.abc import Awaitable, Callable

import pytest

from fencelog.errors import ErrorCode
from fencelog.wire.api_versions import SUPPORTED, ApiKey
from fencelog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from fencelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tests.support.groups import FAST
from tests.support.node import Peer, World, batch, visible
from tests.support.transactions import ID, Worker

FENCED, EPOCH = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH
MAPPING, STATE = ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_TXN_STATE
ABORTABLE, BUSY = ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.CONCURRENT_TRANSACTIONS
ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

Arrange = Callable[[World, Peer], Awaitable[Worker]]
Ask = Callable[[Worker, int], Awaitable[ErrorCode]]


# -- what a producer finds itself in ---------------------------------------------------------------


async def fenced(_world: World, peer: Peer) -> Worker:
    """A newer incarnation has taken over."""
    zombie, successor = Worker(peer), Worker(peer)
    await zombie.init()
    await successor.init()
    return zombie


async def stranger(_world: World, peer: Peer) -> Worker:
    """It names a producer id that this transactional id does not have."""
    worker = Worker(peer)
    await worker.init()
    worker.producer_id += 1000
    return worker


async def unknown(_world: World, peer: Peer) -> Worker:
    """Its transactional id is forgotten, or never was."""
    worker = Worker(peer)
    worker.producer_id, worker.epoch = 4711, 0
    return worker


async def idle(_world: World, peer: Peer) -> Worker:
    """It has opened nothing."""
    worker = Worker(peer)
    await worker.init()
    return worker


async def decided(world: World, peer: Peer) -> Worker:
    """Its commit is decided, and the marker waits for a disk that does not answer."""
    worker = Worker(peer)
    await worker.init()
    assert await worker.add("t", 0) is ErrorCode.NONE
    assert await worker.produce("t", "a") is ErrorCode.NONE
    world.disk.hold("t-0/")
    assert await worker.end(commit=True, version=4) is ErrorCode.NONE
    return worker


# -- what it asks ----------------------------------------------------------------------------------


async def init(worker: Worker, version: int, timeout_ms: int = 60_000) -> ErrorCode:
    request = InitProducerIdRequest(
        transactional_id=ID,
        transaction_timeout_ms=timeout_ms,
        producer_id=worker.producer_id,
        producer_epoch=worker.epoch,
    )
    answer = await worker.peer.ask(request, version, InitProducerIdResponse)
    return ErrorCode(answer.error_code)


async def half_init(worker: Worker, version: int) -> ErrorCode:
    worker.epoch = -1
    return await init(worker, version)


async def patient_init(worker: Worker, version: int) -> ErrorCode:
    return await init(worker, version, timeout_ms=2**31 - 1)


async def add(worker: Worker, version: int) -> ErrorCode:
    topics = [AddPartitionsToTxnTopic(name="t", partitions=[0])]
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=ID,
        v3_and_below_producer_id=worker.producer_id,
        v3_and_below_producer_epoch=worker.epoch,
        v3_and_below_topics=topics,
    )
    answer = await worker.peer.ask(request, version, AddPartitionsToTxnResponse)
    (result,) = answer.results_by_topic_v3_and_below[0].results_by_partition
    return ErrorCode(result.partition_error_code)


async def add_offsets(worker: Worker, version: int) -> ErrorCode:
    return await worker.add_offsets(version)


async def commit(worker: Worker, version: int) -> ErrorCode:
    return await worker.end(commit=True, version=version)


async def abort(worker: Worker, version: int) -> ErrorCode:
    return await worker.end(commit=False, version=version)


async def produce(worker: Worker, version: int) -> ErrorCode:
    return await worker.produce("t", "x", version=version)


async def commit_offset(worker: Worker, version: int) -> ErrorCode:
    return await worker.commit_offset(1, version=version)


KEYS = {
    init: ApiKey.INIT_PRODUCER_ID,
    half_init: ApiKey.INIT_PRODUCER_ID,
    patient_init: ApiKey.INIT_PRODUCER_ID,
    add: ApiKey.ADD_PARTITIONS_TO_TXN,
    add_offsets: ApiKey.ADD_OFFSETS_TO_TXN,
    commit: ApiKey.END_TXN,
    abort: ApiKey.END_TXN,
    produce: ApiKey.PRODUCE,
    commit_offset: ApiKey.TXN_OFFSET_COMMIT,
}
LAST = {ask: SUPPORTED[key].maximum for ask, key in KEYS.items()}

TABLE: list[tuple[Arrange, Ask, int, int, ErrorCode]] = [
    (fenced, init, 3, 3, EPOCH),
    (fenced, init, 4, LAST[init], FENCED),
    (fenced, add, 0, 1, EPOCH),
    (fenced, add, 2, LAST[add], FENCED),
    (fenced, add_offsets, 0, 1, EPOCH),
    (fenced, add_offsets, 2, LAST[add_offsets], FENCED),
    (fenced, commit, 0, 1, EPOCH),
    (fenced, commit, 2, LAST[commit], FENCED),
    (fenced, abort, 0, 1, EPOCH),
    (fenced, abort, 2, LAST[abort], FENCED),
    (fenced, produce, 3, LAST[produce], EPOCH),
    (fenced, commit_offset, 0, LAST[commit_offset], EPOCH),
    (stranger, init, 3, 3, EPOCH),
    (stranger, init, 4, LAST[init], FENCED),
    (stranger, add, 0, LAST[add], MAPPING),
    (stranger, add_offsets, 0, LAST[add_offsets], MAPPING),
    (stranger, commit, 0, LAST[commit], MAPPING),
    (stranger, produce, 3, LAST[produce], MAPPING),
    (stranger, commit_offset, 0, LAST[commit_offset], MAPPING),
    (unknown, add, 0, LAST[add], MAPPING),
    (unknown, add_offsets, 0, LAST[add_offsets], MAPPING),
    (unknown, commit, 0, LAST[commit], MAPPING),
    (unknown, produce, 3, LAST[produce], MAPPING),
    (unknown, commit_offset, 0, LAST[commit_offset], MAPPING),
    (idle, half_init, 3, LAST[init], ErrorCode.INVALID_REQUEST),
    (idle, patient_init, 0, LAST[init], ErrorCode.INVALID_TRANSACTION_TIMEOUT),
    (idle, commit, 0, LAST[commit], STATE),
    (idle, abort, 0, 4, STATE),  # from 5 on it fences what may be under way, and succeeds
    (idle, produce, 3, 10, STATE),
    (idle, produce, 11, 11, ABORTABLE),  # from 12 on it enlists
    (idle, commit_offset, 0, 3, STATE),
    (idle, commit_offset, 4, 4, ABORTABLE),  # from 5 on it enlists
    (decided, init, 0, LAST[init], BUSY),
    (decided, add, 0, LAST[add], BUSY),
    (decided, add_offsets, 0, LAST[add_offsets], BUSY),
    (decided, commit, 0, 4, BUSY),
    (decided, abort, 0, 4, STATE),
    (decided, produce, 3, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
    (decided, commit_offset, 0, 4, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
]


def row(value: object) -> str:
    return getattr(value, "__name__", None) or getattr(value, "name", None) or str(value)


@pytest.mark.parametrize(("arrange", "ask", "first", "last", "error"), TABLE, ids=row)
async def test_a_refusal_has_the_code_that_the_version_knows(  # E2, E7, E9, E14
    world: World, arrange: Arrange, ask: Ask, first: int, last: int, error: ErrorCode
) -> None:
    async with world.node(**FAST) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        worker = await arrange(world, peer)
        try:
            told = {version: await ask(worker, version) for version in range(first, last + 1)}
        finally:
            world.disk.release()
        assert told == dict.fromkeys(range(first, last + 1), error)


def test_the_table_has_every_request_of_a_transaction_in_every_version() -> None:
    told = {(KEYS[ask], each) for _, ask, low, high, _ in TABLE for each in range(low, high + 1)}
    for key in set(KEYS.values()):
        first = 3 if key is ApiKey.PRODUCE else SUPPORTED[key].minimum
        missing = set(range(first, SUPPORTED[key].maximum + 1)) - {v for k, v in told if k is key}
        assert not missing, key


@pytest.mark.parametrize("version", range(3, SUPPORTED[ApiKey.PRODUCE].maximum + 1))
async def test_a_partition_validates_a_batch_alike_in_each_version(
    world: World, version: int
) -> None:
    """E2, E4, E5, E6: an idempotent producer's batches, one row after the other."""
    rows = [  # epoch, sequence, what is answered, and at which offset
        (1, 0, ErrorCode.NONE, 0),
        (1, 0, ErrorCode.NONE, 0),  # a retry
        (1, 2, ORDER, -1),
        (0, 1, EPOCH, -1),
        (2, 1, ORDER, -1),
        (2, 0, ErrorCode.NONE, 1),  # it raised its epoch by itself (KIP-360)
        (1, 1, EPOCH, -1),
        *((2, number, ErrorCode.NONE, number + 1) for number in range(1, 6)),
        (2, 1, ErrorCode.NONE, 2),  # the oldest of five
        (2, 0, ORDER, -1),
    ]
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        for epoch, sequence, error, offset in rows:
            sent = batch("x", producer_id=900, epoch=epoch, sequence=sequence)
            told = await peer.produce("t", sent, version=version)
            assert (told.error, told.base_offset) == (error, offset), (epoch, sequence)
        assert len(visible(await peer.fetch("t"))) == 7


@pytest.mark.parametrize("version", range(3, SUPPORTED[ApiKey.PRODUCE].maximum + 1))
async def test_a_plain_write_inside_the_producers_own_transaction_is_refused(
    world: World, version: int
) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        worker = await idle(world, peer)
        assert await worker.add("t", 0) is ErrorCode.NONE
        assert await worker.produce("t", "a") is ErrorCode.NONE
        plain = batch(
            "x", producer_id=worker.producer_id, epoch=worker.epoch, sequence=worker.sequence
        )
        assert (await peer.produce("t", plain, version=version)).error is STATE
