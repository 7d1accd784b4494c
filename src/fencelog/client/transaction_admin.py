"""Requests about transactions, for operators: list, describe, abort, find hanging ones."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import TypeVar

from fencelog.client.cluster import TRANSACTION, Cluster
from fencelog.client.leaders_of import ask_leaders
from fencelog.client.model import (
    OpenBatch,
    ProducerDescription,
    TransactionDescription,
    TransactionListing,
)
from fencelog.client.retry import retrying
from fencelog.client.versioned_transactions import Transactions
from fencelog.errors import ErrorCode, RequestError
from fencelog.rpc.connection import Connection
from fencelog.rpc.deadline import Deadline
from fencelog.rpc.failures import failure
from fencelog.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition
from fencelog.wire.message import Message
from fencelog.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    TopicRequest,
)
from fencelog.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from fencelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from fencelog.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from fencelog.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from fencelog.wire.own import app_of, transactional_id
from fencelog.wire.primitives import error_code

R = TypeVar("R", bound=Message)
T = TypeVar("T")
OPEN = "Ongoing"
NONE_OPEN = frozenset(("Empty", "CompleteCommit", "CompleteAbort"))
INIT_VERSION_MAX = 4
PARTITIONS_PER_REQUEST = 500


class TransactionAdmin:
    """Requests about transactions, sent to coordinators and partition leaders."""

    def __init__(self, cluster: Cluster) -> None:
        """Use the cluster's connections."""
        self._cluster = cluster

    # --- by transactional id

    async def listed(
        self,
        states: Collection[str],
        producer_ids: Collection[int],
        longer_than_ms: int | None,
    ) -> list[TransactionListing]:
        """Ask every broker for the transactional ids that it coordinates."""
        deadline = self._cluster.deadline()
        view = await self._cluster.metadata([], deadline)
        request = ListTransactionsRequest(
            state_filters=[*states],
            producer_id_filters=[*producer_ids],
            duration_filter=-1 if longer_than_ms is None else longer_than_ms,
        )
        found: list[TransactionListing] = []
        for broker in view.brokers:
            found += await retrying(
                partial(self._list_of, broker.node_id, request, deadline), deadline
            )
        return sorted(found, key=lambda each: (each.transactional_id, each.producer_id))

    async def _list_of(
        self, node_id: int, request: ListTransactionsRequest, deadline: Deadline
    ) -> list[TransactionListing]:
        address = self._cluster.address_of(node_id)
        connection = (
            await self._cluster.any_broker(deadline)
            if address is None
            else await self._cluster.connection(address, deadline)
        )
        answer = await self._cluster.ask(connection, request, ListTransactionsResponse, deadline)
        what = f"transactions of broker {connection.address}"
        if answer.error_code:
            raise failure(error_code(answer.error_code), what)
        if answer.unknown_state_filters:
            unknown = ", ".join(answer.unknown_state_filters)
            raise failure(ErrorCode.INVALID_REQUEST, what, f"unknown state {unknown}")
        return [
            TransactionListing(
                transactional_id=each.transactional_id,
                producer_id=each.producer_id,
                state=each.transaction_state,
            )
            for each in answer.transaction_states
        ]

    async def describe(self, transactional_id: str) -> TransactionDescription:
        """Ask the id's coordinator."""
        what = f"transactional id {transactional_id}"
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])

        async def attempt(deadline: Deadline) -> TransactionDescription:
            answer = await self._cluster.ask_coordinator(
                TRANSACTION, transactional_id, request, DescribeTransactionsResponse, deadline
            )
            for state in answer.transaction_states:
                if state.error_code:
                    raise failure(error_code(state.error_code), what)
                return TransactionDescription(
                    transactional_id=state.transactional_id,
                    producer_id=state.producer_id,
                    producer_epoch=state.producer_epoch,
                    state=state.transaction_state,
                    timeout_ms=state.transaction_timeout_ms,
                    start_time_ms=state.transaction_start_time_ms,
                    partitions=tuple(
                        TopicPartition(topic.topic, number)
                        for topic in state.topics
                        for number in topic.partitions
                    ),
                )
            raise failure(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, what)

        return await self._of_coordinator(transactional_id, attempt)

    async def open_batch(self, app: str) -> OpenBatch | None:
        """Ask an app's coordinator for its open transaction, and the leaders for its rows.

        None if there is none. What changes between these requests shows as it was at one of them.
        """
        described = await self.describe(transactional_id(app))
        if described.state in NONE_OPEN:
            return None
        known = await Transactions(self._cluster).describe(app)
        ids = {each.producer_id for each in known.open_producers}
        places = {place for each in known.open_producers for place in each.partitions}
        producers = await self.producers(sorted(places))
        counts = [
            # Each has a producer id of its own, so its sequences begin at 0.
            producer.last_sequence + 1
            for found in producers.values()
            for producer in found
            if producer.producer_id in ids
        ]
        return OpenBatch(
            app=app,
            state=described.state,
            version=known.open_version,
            query_id=known.query_id,
            run_id=known.run_id,
            run_host=known.run_host,
            since_ms=described.start_time_ms,
            producer_ids=tuple(sorted(ids)),
            rows=sum(counts) if described.state == OPEN else -1,
        )

    async def abort(self, transactional_id: str) -> TransactionDescription:
        """Abort the open transaction, as a new producer of the id or the app's driver would."""
        found = await self.describe(transactional_id)
        if found.state != OPEN:
            what = (
                "has no open transaction"
                if found.state in NONE_OPEN
                else "has a decided transaction"
            )
            raise RequestError(
                ErrorCode.INVALID_TXN_STATE, f"{transactional_id} {what} ({found.state})"
            )
        app = app_of(transactional_id)
        if app is None:
            await self._fence(transactional_id, found.timeout_ms)
        else:
            apps = Transactions(self._cluster)
            known = await apps.describe(app)
            await apps.abort(app, known.query_id or "", known.run_id or "", known.open_version)
        return found

    async def _fence(self, transactional_id: str, timeout_ms: int) -> None:
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_PRODUCER_EPOCH,
        )

        async def attempt(deadline: Deadline) -> None:
            answer = await self._cluster.ask_coordinator(
                TRANSACTION,
                transactional_id,
                request,
                InitProducerIdResponse,
                deadline,
                INIT_VERSION_MAX,
            )
            if answer.error_code:
                raise failure(error_code(answer.error_code), f"abort of {transactional_id}")

        await self._of_coordinator(transactional_id, attempt)

    async def _of_coordinator(
        self, transactional_id: str, attempt: Callable[[Deadline], Awaitable[T]]
    ) -> T:
        deadline = self._cluster.deadline()
        return await retrying(
            partial(attempt, deadline),
            deadline,
            lambda: self._cluster.forget_coordinator(TRANSACTION, transactional_id),
        )

    # --- by partition

    async def producers(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, list[ProducerDescription]]:
        """Ask each partition's leader; a partition that was deleted meanwhile has no producers."""
        found: dict[TopicPartition, list[ProducerDescription]] = {}
        for start in range(0, len(partitions), PARTITIONS_PER_REQUEST):
            asked = partitions[start : start + PARTITIONS_PER_REQUEST]
            found.update(await ask_leaders(self._cluster, asked, self._producers_of))
        return found

    async def _producers_of(
        self, connection: Connection, partitions: Sequence[TopicPartition], deadline: Deadline
    ) -> dict[TopicPartition, list[ProducerDescription]]:
        topics: dict[str, list[int]] = {}
        for name, number in partitions:
            topics.setdefault(name, []).append(number)
        request = DescribeProducersRequest(
            topics=[TopicRequest(name=n, partition_indexes=p) for n, p in topics.items()]
        )
        answer = await self._cluster.ask(connection, request, DescribeProducersResponse, deadline)
        found = {}
        for topic in answer.topics:
            for result in topic.partitions:
                at = TopicPartition(topic.name, result.partition_index)
                code = error_code(result.error_code)
                if code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                    raise failure(code, f"producers of {at}", result.error_message)
                found[at] = _described(at, result)
        return found

    async def find_hanging(
        self, partitions: Sequence[TopicPartition] | None, before_ms: int | None
    ) -> list[ProducerDescription]:
        """Compare open transactions of the partitions (None: all) with the coordinators' lists.

        A transaction that was open and is not listed may have ended meanwhile, its marker first:
        so the partitions are asked again at the end.
        """
        places = await self._everywhere() if partitions is None else partitions
        candidates = [
            each
            for each in await self._open(places)
            if before_ms is None or each.last_timestamp_ms < before_ms
        ]
        unlisted = await self._unlisted(candidates)
        still_open = {
            _key(each) for each in await self._open({each.partition for each in unlisted})
        }
        hanging = [each for each in unlisted if _key(each) in still_open]
        return sorted(hanging, key=lambda each: (each.partition, each.start_offset))

    async def _everywhere(self) -> Sequence[TopicPartition]:
        view = await self._cluster.metadata(None, self._cluster.deadline())
        return [
            TopicPartition(topic.name, one.partition)
            for topic in view.topics
            for one in topic.partitions
        ]

    async def _open(self, partitions: Collection[TopicPartition]) -> list[ProducerDescription]:
        found = await self.producers(sorted(partitions))
        return [each for known in found.values() for each in known if each.start_offset is not None]

    async def _unlisted(
        self, candidates: Sequence[ProducerDescription]
    ) -> list[ProducerDescription]:
        """Those whose producer no coordinator knows, or not with their partition."""
        if not candidates:
            return []
        ids = {each.producer_id for each in candidates}
        owners = {
            each.producer_id: each.transactional_id for each in await self.listed((), ids, None)
        }
        expected: dict[str, frozenset[TopicPartition]] = {}
        for name in sorted(set(owners.values())):
            try:
                expected[name] = frozenset((await self.describe(name)).partitions)
            except RequestError as error:
                if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                    raise
                expected[name] = frozenset()  # forgotten since it was listed
        return [
            each
            for each in candidates
            if each.producer_id not in owners
            or each.partition not in expected[owners[each.producer_id]]
        ]

    async def abort_hanging(self, at: TopicPartition, start_offset: int) -> ProducerDescription:
        """Write an abort marker for the hanging transaction that begins at this offset."""
        found = next(
            (each for each in await self._open([at]) if each.start_offset == start_offset), None
        )
        if found is None:
            raise RequestError(
                ErrorCode.INVALID_TXN_STATE, f"no open transaction of {at} begins at {start_offset}"
            )
        try:
            await self._write_abort(found)
        except RequestError as error:
            if error.code is not ErrorCode.INVALID_TXN_STATE:
                raise
            owners = await self.listed((), [found.producer_id], None)
            whose = owners[0].transactional_id if owners else f"producer {found.producer_id}"
            raise RequestError(
                error.code, f"the transaction of {at} is not hanging: {whose} has it"
            ) from error
        return found

    async def _write_abort(self, found: ProducerDescription) -> None:
        at = found.partition
        marker = WritableTxnMarker(
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            transaction_result=False,
            topics=[WritableTxnMarkerTopic(name=at.topic, partition_indexes=[at.partition])],
            coordinator_epoch=max(found.coordinator_epoch, 0),
        )
        deadline = self._cluster.deadline()

        async def attempt() -> None:
            connection = await self._cluster.leader(at, deadline)
            answer = await self._cluster.ask(
                connection,
                WriteTxnMarkersRequest(markers=[marker]),
                WriteTxnMarkersResponse,
                deadline,
                1,
            )
            for of_marker in answer.markers:
                for of_topic in of_marker.topics:
                    for result in of_topic.partitions:
                        if result.error_code:
                            raise failure(error_code(result.error_code), f"abort marker for {at}")

        await retrying(attempt, deadline, lambda: self._stale([at]))

    def _stale(self, partitions: Sequence[TopicPartition]) -> None:
        for each in partitions:
            self._cluster.forget(each.topic)


def _described(at: TopicPartition, result: PartitionResponse) -> list[ProducerDescription]:
    return [
        ProducerDescription(
            partition=at,
            producer_id=each.producer_id,
            producer_epoch=each.producer_epoch,
            coordinator_epoch=each.coordinator_epoch,
            last_sequence=each.last_sequence,
            last_timestamp_ms=each.last_timestamp,
            start_offset=None
            if each.current_txn_start_offset < 0
            else each.current_txn_start_offset,
        )
        for each in result.active_producers
    ]


def _key(found: ProducerDescription) -> tuple[TopicPartition, int, int | None]:
    return found.partition, found.producer_id, found.start_offset
