"""ListTransactions, DescribeTransactions, DescribeProducers.

Versioned transactions are listed with Kafka's: under the transactional id that their producers use,
once for each producer. So a tool that looks for hanging transactions
(``kafka-transactions.sh find-hanging``, ``fencelog txn find-hanging``) does not report them.
Version notes: ListTransactions filters by age from 1 on, by a pattern of the id from 2 on.
"""

from collections.abc import Iterable, Iterator

from fencelog.broker.context import Broker
from fencelog.broker.coordinators.outcomes import shards_here
from fencelog.broker.handlers.brokers import missing
from fencelog.broker.network.connection import Request
from fencelog.broker.partitions.purgatory import failure_code
from fencelog.coordination.encoding import by_topic
from fencelog.coordination.id_pattern import IdPattern, PatternError
from fencelog.coordination.transaction.state import Transaction, TxnState
from fencelog.coordination.versioned.answers import OpenApp
from fencelog.coordination.versioned.shard import VersionedShard
from fencelog.coordination.versioned.state import Phase
from fencelog.errors import ErrorCode, NotLeaderError, StorageError
from fencelog.log.values import ProducerView
from fencelog.types import TimestampMs, TopicPartition
from fencelog.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from fencelog.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
)
from fencelog.wire.messages.describe_transactions import TransactionState as DescribedTransaction
from fencelog.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from fencelog.wire.messages.list_transactions import TransactionState as ListedTransaction
from fencelog.wire.own import app_of, transactional_id

_PHASES = {
    Phase.IDLE: TxnState.EMPTY,
    Phase.OPEN: TxnState.ONGOING,
    Phase.COMMITTING: TxnState.PREPARE_COMMIT,
    Phase.ABORTING: TxnState.PREPARE_ABORT,
}
_KAFKA_STATES = frozenset(state.kafka_name for state in TxnState) | {"PrepareEpochFence"}
"""States to filter by; the last is Kafka's own, and no transaction here is ever in it."""


async def list_transactions(
    broker: Broker, message: ListTransactionsRequest, request: Request
) -> ListTransactionsResponse:
    """Return all transactional ids, filtered by state, producer id and age, or an error.

    A list without the transactions of one coordinator partition would make them look hanging.
    """
    del request
    try:
        pattern = IdPattern(message.transactional_id_pattern or "")
    except PatternError:
        return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    try:
        await shards_here(broker.transactions, broker.logs)
        found = await broker.transactions.read_all(lambda shard: list(shard.transactions()))
        await shards_here(broker.versioned, broker.logs)
        apps = await broker.versioned.read_all(lambda shard: list(shard.transactions()))
    except NotLeaderError as refused:
        return ListTransactionsResponse(error_code=refused.coordinator_error)
    now_ms = broker.clock.now_ms()
    listed = [_listed(one) for one in found if _is_old_enough(message, one.started_ms, now_ms)]
    open_apps = [one for one in apps if _is_old_enough(message, one.opened_ms, now_ms)]
    listed += [one for app in open_apps for one in _listed_app(app)]
    if message.transactional_id_pattern:
        listed = [one for one in listed if await _is_like(broker, pattern, one.transactional_id)]
    return ListTransactionsResponse(
        unknown_state_filters=[name for name in message.state_filters if name not in _KAFKA_STATES],
        transaction_states=sorted(_wanted(message, listed), key=lambda one: one.transactional_id),
    )


async def _is_like(broker: Broker, pattern: IdPattern, name: str) -> bool:
    await broker.time_slices.next()  # the worst pattern takes milliseconds for an id
    return pattern.matches(name)


def _is_old_enough(
    message: ListTransactionsRequest, started_ms: TimestampMs, now_ms: TimestampMs
) -> bool:
    """Whether a transaction is older than the filter; one that never began is not, unlike in Kafka.

    Without a filter, every one is old enough.
    """
    age_ms = now_ms - started_ms
    return message.duration_filter < 0 or (started_ms >= 0 and age_ms > message.duration_filter)


def _wanted(
    message: ListTransactionsRequest, listed: Iterable[ListedTransaction]
) -> Iterator[ListedTransaction]:
    states, producer_ids = set(message.state_filters), set(message.producer_id_filters)
    for one in listed:
        is_of_state = not states or one.transaction_state in states
        if is_of_state and (not producer_ids or one.producer_id in producer_ids):
            yield one


def _listed(transaction: Transaction) -> ListedTransaction:
    return ListedTransaction(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer.producer_id,
        transaction_state=transaction.state.kafka_name,
    )


def _listed_app(app: OpenApp) -> Iterator[ListedTransaction]:
    for producer_id in app.producer_ids:
        yield ListedTransaction(
            transactional_id=transactional_id(app.app),
            producer_id=producer_id,
            transaction_state=_PHASES[app.phase].kafka_name,
        )


async def describe_transactions(
    broker: Broker, message: DescribeTransactionsRequest, request: Request
) -> DescribeTransactionsResponse:
    """Return state, producer and partitions of each named transactional id.

    The partitions are those of the open transaction, or of a decided one those that still need a
    marker.
    """
    del request
    return DescribeTransactionsResponse(
        transaction_states=[
            await _describe(broker, requested)
            async for requested in broker.time_slices.each(message.transactional_ids)
        ]
    )


async def _describe(broker: Broker, requested: str) -> DescribedTransaction:
    if not requested:
        return _refused(requested, ErrorCode.INVALID_REQUEST)
    app = app_of(requested)
    try:
        if app is not None:
            return await _describe_app(broker, app)
        found = await broker.transactions.read(requested, lambda shard: shard.describe(requested))
    except NotLeaderError as refused:
        return _refused(requested, refused.coordinator_error)
    if found is None:
        return _refused(requested, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    return DescribedTransaction(
        transactional_id=requested,
        transaction_state=found.state.kafka_name,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.started_ms,
        producer_id=found.producer.producer_id,
        producer_epoch=found.producer.producer_epoch,
        topics=_topics(found.partitions),
    )


async def _describe_app(broker: Broker, app: str) -> DescribedTransaction:
    """Describe a versioned transaction. It has many producers, so producer id and epoch are -1."""
    name = transactional_id(app)

    def query(shard: VersionedShard) -> tuple[bool, OpenApp | None]:
        found = (one for one in shard.transactions() if one.app == app)
        return shard.describe(app) is not None, next(found, None)

    is_known, found = await broker.versioned.read(name, query)
    if not is_known:
        return _refused(name, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    return DescribedTransaction(
        transactional_id=name,
        transaction_state=_PHASES[Phase.IDLE if found is None else found.phase].kafka_name,
        transaction_timeout_ms=0 if found is None else found.timeout_ms,
        transaction_start_time_ms=-1 if found is None else found.opened_ms,
        producer_id=-1,
        producer_epoch=-1,
        topics=[] if found is None else _topics(found.partitions),
    )


def _refused(requested: str, error: ErrorCode) -> DescribedTransaction:
    return DescribedTransaction(transactional_id=requested, error_code=error)


def _topics(partitions: Iterable[TopicPartition]) -> list[TopicData]:
    return [TopicData(topic=topic, partitions=indexes) for topic, indexes in by_topic(partitions)]


async def describe_producers(
    broker: Broker, message: DescribeProducersRequest, request: Request
) -> DescribeProducersResponse:
    """Return the producers of each partition, and the start of their open transaction (E16)."""
    del request
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[
                    await _producers(broker, topic.name, index)
                    async for index in broker.time_slices.each(topic.partition_indexes)
                ],
            )
            async for topic in broker.time_slices.each(message.topics)
        ]
    )


async def _producers(broker: Broker, topic: str, index: int) -> PartitionResponse:
    partition = broker.logs.get(topic, index)
    error = missing(broker, topic, index) if partition is None else partition.read_error
    if partition is not None and error is ErrorCode.NONE:
        found = [_producer(view) for view in partition.log.producers()]
        try:
            await partition.committed(partition.log.log_end_offset)
        except (NotLeaderError, StorageError) as failed:
            return PartitionResponse(
                partition_index=index, error_code=failure_code(failed), error_message=str(failed)
            )
        return PartitionResponse(partition_index=index, active_producers=found)
    known = broker.catalog.get(topic)
    is_unused = known is not None and known.internal and 0 <= index < known.partitions
    if is_unused and error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return PartitionResponse(partition_index=index)  # created when its coordinator is needed
    return PartitionResponse(
        partition_index=index,
        error_code=error,
        error_message=f"partition {topic}-{index} does not exist, is offline or is led elsewhere",
    )


def _producer(view: ProducerView) -> ProducerState:
    return ProducerState(
        producer_id=view.producer_id,
        producer_epoch=view.producer_epoch,
        last_sequence=view.last_sequence,
        last_timestamp=view.last_timestamp,
        coordinator_epoch=view.coordinator_epoch,
        current_txn_start_offset=-1 if view.open_offset is None else view.open_offset,
    )
