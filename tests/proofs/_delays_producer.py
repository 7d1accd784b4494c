"""A producer at the level of messages: consume, transform, produce, in either transaction version.

It does what the protocol asks of a client and nothing more, so that its requests, and not a
library's, are what the proof is about. Version 1 enlists partitions and goes on under one epoch;
after a write without an answer it takes a new one (KIP-360). Version 2 enlists by writing and takes
the epoch that each EndTxn gives.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from fencelog.check.history import Event, Invocation, Recorder, key_of
from fencelog.errors import ErrorCode
from fencelog.wire import hot
from fencelog.wire.api_versions import SUPPORTED, ApiKey
from fencelog.wire.message import Message
from fencelog.wire.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from fencelog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from fencelog.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from fencelog.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from fencelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from fencelog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from fencelog.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from fencelog.wire.records import RecordToWrite, build_batch
from tests.proofs._delays_network import HeldError, Network
from tests.proofs._delays_schedule import PRODUCES_EACH, TRANSACTIONS, Hold, Version

M = TypeVar("M", bound=Message)
T = TypeVar("T")
SOURCE = "delays-in"
LIVES_MAX = 12
BACK_OFF_S = 0.002
OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
AWAY_POLL_S = 0.05
VERSIONS: dict[int, dict[ApiKey, int]] = {
    1: {
        ApiKey.PRODUCE: 11,
        ApiKey.ADD_PARTITIONS_TO_TXN: 3,
        ApiKey.ADD_OFFSETS_TO_TXN: 3,
        ApiKey.TXN_OFFSET_COMMIT: 3,
        ApiKey.END_TXN: 3,
        ApiKey.INIT_PRODUCER_ID: 4,
    },
    2: {
        ApiKey.PRODUCE: 12,
        ApiKey.TXN_OFFSET_COMMIT: 5,
        ApiKey.END_TXN: 5,
        ApiKey.INIT_PRODUCER_ID: min(5, SUPPORTED[ApiKey.INIT_PRODUCER_ID].maximum),
    },
}
RETRIED = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


class RefusedError(Exception):
    """The broker refuses: this producer's transaction, or the producer, is over."""


class GivenUpError(Exception):
    """The client gives up on its transaction because an answer is missing."""

    def __init__(self, hold: Hold) -> None:
        """``hold``: the request without an answer."""
        super().__init__(hold)
        self.hold = hold


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Where a schedule plays: a topic that is its own meanwhile, and input partitions."""

    topic: str
    sources: tuple[int, ...]

    @property
    def keys(self) -> dict[int, str]:
        """The inputs' keys in histories."""
        return {each: key_of(SOURCE, each) for each in self.sources}


@dataclass(kw_only=True)
class _Attempt:
    """One transaction."""

    invocation: Invocation
    values: list[str]
    source: int
    position: int
    offsets: list[int | None]
    may_be_committed: bool = False


@dataclass(kw_only=True)
class Producer:
    """Makes outputs of a fixed number of inputs, over successors of itself if need be."""

    network: Network
    slot: Slot
    version: Version
    name: str
    timeout_ms: int
    write: Callable[[Event], None]
    aborts: tuple[int, ...]
    disturbed: list[str] = field(default_factory=list)
    """What it was refused."""
    producer_id: int = -1
    epoch: int = -1
    lives: int = 0
    _sequences: dict[int, int] = field(default_factory=dict)
    _recorder: Recorder | None = None
    _current: _Attempt | None = None

    async def run(self) -> None:
        """Work until all inputs have their outputs. Raises AssertionError where that never ends."""
        await self._succeed()
        while source := await self._next_source():
            assert self.lives < LIVES_MAX, f"{self.name} gets nowhere: {self.disturbed}"
            try:
                await self._transaction(*source)
            except RefusedError as error:
                self.disturbed.append(str(error))
                await self._replaced()
            except GivenUpError as error:
                await self._react(error.hold)

    async def _next_source(self) -> tuple[int, int] | None:
        """Where to take inputs from, the partitions by turns; None: all are done.

        By turns, so that the next transaction does not make good what is late from the one before;
        and always from what is committed, as after a rebalance, so that it shows.
        """
        positions = await self.positions()
        count = len(self.slot.sources)
        each = PRODUCES_EACH * TRANSACTIONS // count
        for ahead in range(count):
            source = self.slot.sources[(self.network.attempt + ahead) % count]
            if positions[source] < each:
                return source, positions[source]
        return None

    # --- one transaction

    async def _transaction(self, source: int, position: int) -> None:
        number = self.network.attempt
        assert self._recorder is not None
        values = [f"{self.name}.{number}.{index}" for index in range(PRODUCES_EACH)]
        offsets: list[int | None] = [None] * PRODUCES_EACH
        self._current = current = _Attempt(
            invocation=self._recorder.invoke(
                self._steps(values, offsets, source, position), transactional=True
            ),
            values=values,
            source=source,
            position=position,
            offsets=offsets,
        )
        if self.version == 1:
            await self._step(self._enlist())
        for index, value in enumerate(values):
            current.offsets[index] = await self._produce(index, value)
        after = position + PRODUCES_EACH
        if self.version == 1:
            await self._step(self._enlist_group())
        await self._step(self._commit_offsets(source, after))
        if number in self.aborts:
            await self._end(commit=False)
            self._over(failed="on purpose")
            return
        current.invocation.committing()
        current.may_be_committed = True
        await self._end(commit=True)
        self._over(failed=None)

    def _steps(
        self, values: list[str], offsets: list[int | None], source: int, position: int
    ) -> list[list[object]]:
        key = self.slot.keys[source]
        steps: list[list[object]] = [
            ["send", key_of(self.slot.topic, index), value, offset, [key, position + index]]
            for index, (value, offset) in enumerate(zip(values, offsets, strict=True))
        ]
        return [*steps, ["commit", self.name, {key: position + PRODUCES_EACH}]]

    def _over(self, *, failed: str | None, is_known: bool = True) -> None:
        """The transaction is over, as far as its client knows."""
        current, self._current = self._current, None
        self.network.attempt += 1
        if current is None:
            return
        steps = self._steps(current.values, current.offsets, current.source, current.position)
        if not is_known:
            current.invocation.indeterminate(steps, failed or "")
        elif failed is not None:
            current.invocation.failed(steps, failed)
        else:
            current.invocation.ok(steps)

    # --- what a missing answer leads to

    async def _react(self, hold: Hold) -> None:
        """End the transaction as the schedule says."""
        if hold.reaction == "away":
            await self._stay_away()
        elif hold.reaction == "abort" and hold.api is not ApiKey.END_TXN:
            keeps_epoch = hold.api in (ApiKey.TXN_OFFSET_COMMIT, ApiKey.ADD_OFFSETS_TO_TXN)
            if self.version == 1 and not keeps_epoch:
                await self._replaced(is_itself=True)
                return
            try:
                await self._end(commit=False)
            except (RefusedError, GivenUpError) as error:
                self.disturbed.append(f"while aborting: {error}")
            else:
                self._over(failed="given up")
                return
        await self._replaced()

    async def _stay_away(self) -> None:
        self.network.is_away = True
        asked = DescribeTransactionsRequest(transactional_ids=[self.name])
        while True:
            answer = await self._answered(asked, 0, DescribeTransactionsResponse)
            if answer.transaction_states[0].transaction_state not in OPEN:
                break
            await asyncio.sleep(AWAY_POLL_S)
        self.network.is_away = False

    async def _replaced(self, *, is_itself: bool = False) -> None:
        """A successor, or oneself under a new epoch: what was open is aborted."""
        current = self._current
        may_be_committed = current is not None and current.may_be_committed
        await self._succeed(is_itself=is_itself)
        self._over(failed="replaced", is_known=not may_be_committed)
        self._rename()

    async def _succeed(self, *, is_itself: bool = False) -> None:
        """Take an identity, and read where to go on."""
        request = InitProducerIdRequest(
            transactional_id=self.name,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=self.producer_id if is_itself else -1,
            producer_epoch=self.epoch if is_itself else -1,
        )
        version = VERSIONS[self.version][ApiKey.INIT_PRODUCER_ID]
        try:
            answer = await self._answered(
                request, version, InitProducerIdResponse, lambda found: found.error_code
            )
        except RefusedError as error:
            if not is_itself:
                raise
            self.disturbed.append(f"under its own epoch: {error}")
            await self._succeed()
            return
        self._identify(answer.producer_id, answer.producer_epoch)
        self.lives += 1
        if self._recorder is None:
            self._rename()

    def _rename(self) -> None:
        """A client that is started again has another name in the history."""
        now = asyncio.get_running_loop().time
        self._recorder = Recorder(f"{self.name}.{self.lives}", now=now, write=self.write)

    def _identify(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self.producer_id, self.epoch = producer_id, epoch
            self._sequences.clear()

    async def positions(self) -> dict[int, int]:
        """What its group has committed of each input partition."""
        wanted = list(self.slot.sources)
        place = OffsetFetchRequestTopic(name=SOURCE, partition_indexes=wanted)
        request = OffsetFetchRequest(group_id=self.name, topics=[place], require_stable=True)

        def code(found: OffsetFetchResponse) -> int:
            return found.error_code or max(each.error_code for each in found.topics[0].partitions)

        answer = await self._answered(request, 7, OffsetFetchResponse, code)
        return {
            each.partition_index: max(each.committed_offset, 0)
            for each in answer.topics[0].partitions
        }

    # --- requests

    async def _step(self, step: "Callable[[], Awaitable[T]]") -> T:
        """Ask, and again if the schedule holds the request and the client is patient."""
        while True:
            try:
                return await step()
            except HeldError as error:
                if error.hold.reaction != "retry":
                    raise GivenUpError(error.hold) from error

    async def _answered(
        self,
        request: Message,
        version: int,
        answer: type[M],
        code: Callable[[M], int] = lambda _found: 0,
    ) -> M:
        """The answer that is not about trying again. Raises RefusedError."""
        while True:
            try:
                found = await self.network.ask(request, version, answer)
            except OSError:
                await asyncio.sleep(BACK_OFF_S)
                continue
            error = ErrorCode(code(found))
            if error is ErrorCode.NONE:
                return found
            if error not in RETRIED:
                raise RefusedError(f"{ApiKey(request.API_KEY).name}: {error.name}")
            await asyncio.sleep(BACK_OFF_S)

    def _enlist(self) -> Callable[[], Awaitable[object]]:
        indexes = list(range(PRODUCES_EACH))
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=self.slot.topic, partitions=indexes)],
        )

        def code(found: AddPartitionsToTxnResponse) -> int:
            results = found.results_by_topic_v3_and_below[0].results_by_partition
            return max(each.partition_error_code for each in results)

        version = VERSIONS[1][ApiKey.ADD_PARTITIONS_TO_TXN]
        return lambda: self._answered(request, version, AddPartitionsToTxnResponse, code)

    def _enlist_group(self) -> Callable[[], Awaitable[object]]:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=self.name,
        )
        version = VERSIONS[1][ApiKey.ADD_OFFSETS_TO_TXN]
        return lambda: self._answered(
            request, version, AddOffsetsToTxnResponse, lambda found: found.error_code
        )

    def _commit_offsets(self, source: int, position: int) -> Callable[[], Awaitable[object]]:
        place = TxnOffsetCommitRequestPartition(partition_index=source, committed_offset=position)
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=SOURCE, partitions=[place])],
        )
        version = VERSIONS[self.version][ApiKey.TXN_OFFSET_COMMIT]
        return lambda: self._answered(
            request,
            version,
            TxnOffsetCommitResponse,
            lambda found: found.topics[0].partitions[0].error_code,
        )

    async def _end(self, *, commit: bool) -> None:
        request = EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        version = VERSIONS[self.version][ApiKey.END_TXN]
        answer = await self._step(
            lambda: self._answered(request, version, EndTxnResponse, lambda found: found.error_code)
        )
        if self.version == 2:
            self._identify(answer.producer_id, answer.producer_epoch)

    async def _produce(self, index: int, value: str) -> int:
        """Write a record to the partition with this index; returns its offset."""
        body = self._write(index, value)
        version = VERSIONS[self.version][ApiKey.PRODUCE]

        async def attempt() -> hot.PartitionResult:
            while True:
                try:
                    answer = await self.network.send(ApiKey.PRODUCE, version, *body)
                except OSError:
                    await asyncio.sleep(BACK_OFF_S)
                    continue
                except HeldError as error:
                    if error.hold.is_followed and index == 0:
                        self._follow(error.hold, version)
                    raise
                found = hot.read_produce_response(answer, version)[0][0][1][0]
                if found.error not in RETRIED:
                    return found
                await asyncio.sleep(BACK_OFF_S)

        found = await self._step(attempt)
        if found.error is not ErrorCode.NONE:
            raise RefusedError(f"PRODUCE: {found.error.name}")
        self._sequences[index] = self._sequences.get(index, 0) + 1
        return found.base_offset

    def _follow(self, hold: Hold, version: int) -> None:
        """What goes to the other partition was sent already, behind the held request."""
        assert self._current is not None
        body = self._write(1, self._current.values[1])
        self.network.push(hold, ApiKey.PRODUCE, version, *body)

    def _write(self, index: int, value: str) -> list[bytes]:
        batch = build_batch(
            [RecordToWrite(None, value.encode(), 0)],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self._sequences.get(index, 0),
            transactional=True,
        )
        version = VERSIONS[self.version][ApiKey.PRODUCE]
        topics = [(self.slot.topic, [(index, batch)])]
        return [
            bytes(each)
            for each in hot.write_produce_request(version, self.name, -1, 30_000, topics)
        ]
