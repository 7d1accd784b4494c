"""Sends finished batches: in order per partition, several in flight, each stored once.

A batch gets its sequence number when it is first sent, and keeps it. After a lost connection or a
retriable error everything unacknowledged is sent again with the same sequences, and the broker
recognises duplicates (E4, E13).

Transactions are of version 2 (KIP-890): the first write on a partition adds it, and each end
returns the epoch of the next transaction, in which sequences begin at 0 again. So a request that
is still in flight when a transaction ends, a write or the end itself, is fenced by its epoch and
need not be waited for (E14).
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

from fencelog.client.batches import EncodedBatch
from fencelog.client.cluster import TRANSACTION, Cluster
from fencelog.client.model import Compression, Delivery, Joined, ProduceIsolation
from fencelog.client.partition_sender import PartitionSender, ProducerIdentity
from fencelog.client.producer_ids import ask_for_end, init_producer_id
from fencelog.client.retry import RETRIABLE, again, retrying
from fencelog.client.streams.known import Places
from fencelog.client.streams.moving import places_after, put_in_order
from fencelog.client.versioned_transactions import Transactions
from fencelog.errors import ErrorCode, FencelogError, RequestError
from fencelog.rpc.connection import Connection
from fencelog.rpc.failures import failure
from fencelog.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicId, TopicPartition
from fencelog.wire.api_versions import END_BUMPS_FROM, ApiKey
from fencelog.wire.hot import SealedSegment
from fencelog.wire.messages.end_txn import EndTxnResponse
from fencelog.wire.primitives import error_code

WAITING_BYTES_MAX = 32 << 20
"""Bytes queued and not acknowledged; a writer that has more waits."""
END_VERSION_MAX = END_BUMPS_FROM
UNKNOWN_END = "whether the transaction was committed is not known"
SETTLE = "call abort, which settles it, and begin another one"
FENCED = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)


@dataclass(frozen=True, kw_only=True)
class ProducerOptions:
    """How a producer writes. ``joined`` makes it an attempt of a versioned transaction.

    ``identity``: one in an open transaction, which its owner begins and ends.
    """

    idempotent: bool = True
    acks: int = -1
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000
    compression: Compression = "none"
    joined: Joined | None = None
    identity: ProducerIdentity | None = None


def producer_options(
    transactional_id: str | None,
    compression: Compression | None,
    transaction_timeout_ms: int,
    *,
    idempotent: bool,
    isolation: ProduceIsolation,
) -> ProducerOptions:
    """The options of a client's producer: ``read_uncommitted`` is acks=1, never idempotent (F5).

    Raises ValueError for any other isolation.
    """
    if isolation not in get_args(ProduceIsolation):
        # Also for the names that readers use: whoever asks for more must not get acks=1.
        names = " or ".join(get_args(ProduceIsolation))
        raise ValueError(f"isolation is {isolation!r}: expected {names} for a producer")
    is_committed = isolation == "read_committed"
    return ProducerOptions(
        idempotent=idempotent and is_committed,
        acks=-1 if is_committed else 1,
        transactional_id=transactional_id,
        transaction_timeout_ms=transaction_timeout_ms,
        compression=compression or "none",
    )


def owner_options(
    transactional_id: str | None,
    compression: Compression | None,
    transaction_timeout_ms: int,
    *,
    transactional: bool,
) -> ProducerOptions:
    """The options of the producer of a claim with this id. Raises FencelogError without one."""
    if transactional and transactional_id is None:
        raise FencelogError(
            "this claim has no transactional id; ask for one with own(…, transactional_id=NAME)"
        )
    return ProducerOptions(
        transactional_id=transactional_id if transactional else None,
        transaction_timeout_ms=transaction_timeout_ms,
        compression=compression or "none",
    )


async def open_sender(cluster: Cluster, options: ProducerOptions) -> "Sender":
    """Return a sender with its own producer id and epoch.

    With a transactional id the previous producer is fenced, and its open transaction ended, before
    this returns (E7).
    """
    sender = Sender(cluster, options)
    await sender.open()
    return sender


class Sender:
    """Queues batches per partition and sends them. Belongs to one event loop."""

    def __init__(self, cluster: Cluster, options: ProducerOptions) -> None:
        """Use ``open_sender``."""
        self._cluster = cluster
        self._options = options
        self._identity = ProducerIdentity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH, None)
        self._partitions: dict[TopicPartition, PartitionSender] = {}
        self._former: list[PartitionSender] = []
        """Of topics that were created anew, for what they were before."""
        self._streams: set[str] = set()
        """Topics of which some sender is for a segment."""
        self._in_transaction = options.joined is not None
        self._wrote = False
        self._ending = asyncio.Lock()
        """Held by the one that ends the transaction."""
        self._end_is_unknown = False
        """Whether an end has begun whose outcome is not known (yet)."""
        self._is_closed = False
        self._waiting_bytes = 0
        self._dropped = 0
        """How often batches were given up that were not acknowledged."""
        self._deliveries: list[Delivery] = []
        self._failure: RequestError | None = None
        self._changed = asyncio.Event()
        self._renewal: asyncio.Task[None] | None = None

    @property
    def compression(self) -> Compression:
        """The compression codec of batches."""
        return self._options.compression

    @property
    def is_closed(self) -> bool:
        """Whether it was closed: it accepts nothing any more."""
        return self._is_closed

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction has begun and not ended, and can be ended here."""
        return self._in_transaction and self._options.joined is None and not self._is_closed

    async def open(self) -> None:
        """Obtain the producer id and epoch."""
        joined = self._options.joined
        if joined is not None:
            self._identity = ProducerIdentity(
                joined.producer_id, joined.producer_epoch, joined.transactional_id
            )
            self._renewal = asyncio.create_task(self._renew(joined))
        elif self._options.identity is not None:
            self._identity = self._options.identity
        elif self._options.idempotent or self._options.transactional_id is not None:
            self._identity = await self._initialise()

    def check(self) -> None:
        """Raise if nothing may be written now.

        The RequestError of an earlier batch: no batch is accepted after it. Or FencelogError: it is
        closed, or outside a transaction that it needs, or the transaction is being ended, or its
        outcome is unknown.
        """
        self._check_usable()
        if self._options.transactional_id is not None and not self._in_transaction:
            raise FencelogError(
                "a transactional producer writes only inside a transaction; call begin first"
            )

    async def enqueue(self, batches: Iterable[EncodedBatch]) -> None:
        """Queue batches; waits while too many bytes are unacknowledged.

        Raises as ``check`` does. Where that happens, or it is cancelled, some may be queued.
        """
        for batch in batches:
            await self.room()
            self.put(deque((batch,)))

    @property
    def is_full(self) -> bool:
        """Whether too many bytes are unacknowledged."""
        return self._waiting_bytes > WAITING_BYTES_MAX

    async def room(self) -> None:
        """Wait while too many bytes are unacknowledged, and are still to be sent."""
        while self.is_full and not self._failure:
            await self._changed.wait()

    def put(self, batches: deque[EncodedBatch]) -> None:
        """Queue batches, whether or not there is room; takes out what it has queued.

        Raises as ``check`` does, if there are any.
        """
        if batches:
            self.check()
        while batches:
            batch = batches[0]
            self._sender_of(batch).put(batch)
            self._waiting_bytes += len(batch.buffer)
            batches.popleft()

    async def flush(self) -> list[Delivery]:
        """Wait until everything is acknowledged; return what was since the last flush.

        Raises RequestError if a batch was refused or could not be delivered in time, FencelogError
        if it was closed, or its transaction ended, meanwhile.
        """
        self._check_usable()
        return await self._acknowledgements()

    async def begin(self) -> None:
        """Begin a transaction. Raises FencelogError without a transactional id, or inside one."""
        self._check_usable()
        if self._options.transactional_id is None:
            raise FencelogError("transactions require a transactional id")
        if self._in_transaction:
            raise FencelogError("a transaction is open already; commit or abort it first")
        self._in_transaction = True

    def enlisting(self) -> ProducerIdentity:
        """Return the identity for a request that adds something else to the open transaction.

        It is ended at the coordinator then, also if nothing was written. Raises the error of an
        earlier batch, FencelogError outside a transaction.
        """
        self._check_usable()
        if not self.in_transaction:
            raise FencelogError("no transaction is open; call begin first")
        self._wrote = True
        return self._identity

    async def end(self, *, commit: bool) -> list[Delivery]:
        """Commit after everything is acknowledged, or abort; returns once the outcome is durable.

        A commit returns what was acknowledged since the last flush. Raises RequestError: fenced, or
        the transaction timed out, or there was no response; then the outcome is unknown. So it is
        where the caller is cancelled. Only an abort is accepted then, which settles it.
        """
        async with self._ending:
            self._check_open()
            if not self.in_transaction:
                raise FencelogError("no transaction is open; call begin first")
            deliveries = []
            if commit:
                self._check()
                deliveries = await self._acknowledgements()
            elif self._failure is not None and self._failure.code in FENCED:
                self._check()  # A zombie must not get an epoch.
            was_unknown, self._end_is_unknown = self._end_is_unknown, True
            # Whatever becomes of this, nothing more is written in this epoch: sequences would begin
            # at 0 in it again, and the broker would take new batches for repeated ones (E4).
            await self._drop()
            self._identity = await self._ended(commit=commit, was_unknown=was_unknown)
            self._failure = None
            self._wrote = self._end_is_unknown = self._in_transaction = False
            return deliveries

    async def close(self) -> None:
        """Stop sending. Unacknowledged batches may or may not be stored."""
        self._is_closed = True
        if self._renewal is not None:
            self._renewal.cancel()
        await self._drop()

    # --- called by the partitions

    def acknowledged(self, delivery: Delivery, size: int) -> None:
        """Count a batch as stored."""
        self._waiting_bytes -= size
        self._deliveries.append(delivery)
        self._signal()

    def failed(self, error: RequestError) -> None:
        """Accept no more batches."""
        if self._failure is None:
            self._failure = error
        self._signal()

    async def places_after(
        self, sender: PartitionSender, error: RequestError, sealed: SealedSegment | None
    ) -> Places | None:
        """Return where what a partition's sender has belongs; None if it belongs where it is."""
        if self._identity.partitions_added:
            return None  # of a broker without streams, or written as if it had none
        return await places_after(self._cluster, sender, error, sealed)

    def given_on(self, batch: EncodedBatch, parts: Sequence[EncodedBatch]) -> None:
        """Give a batch's records to the senders of the partitions where they belong."""
        self._waiting_bytes += sum(len(each.buffer) for each in parts) - len(batch.buffer)
        for each in parts:
            self._sender_of(each).give(each)

    # --- inside

    def _check_usable(self) -> None:
        """Raise if nothing but an end is accepted, or not even that."""
        self._check_open()
        if self._ending.locked():
            raise FencelogError(
                "the transaction is being committed or aborted; wait until that has returned"
            )
        self._check()

    def _check_open(self) -> None:
        if self._is_closed:
            raise FencelogError("this writer is closed")

    def _check(self) -> None:
        """Raise if the transaction can only be aborted, or the producer is of no use any more."""
        if self._failure is not None:
            more = f"; {UNKNOWN_END}; {SETTLE}" if self._end_is_unknown else ""
            raise again(self._failure, more) from self._failure
        if self._end_is_unknown:
            raise FencelogError(f"{UNKNOWN_END}, as its end was cancelled or failed; {SETTLE}")

    async def _acknowledgements(self) -> list[Delivery]:
        """Wait until everything is acknowledged; otherwise as ``flush``."""
        dropped = self._dropped
        while self._waiting_bytes and not self._failure and self._dropped == dropped:
            await self._changed.wait()
        if self._failure is not None:
            self._check()
        if self._dropped != dropped:
            raise FencelogError(
                "records were dropped before they were acknowledged: the producer was closed, or "
                "its transaction ended, meanwhile"
            )
        deliveries, self._deliveries = self._deliveries, []
        return deliveries

    def _signal(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _sender_of(self, batch: EncodedBatch) -> PartitionSender:
        """Return the sender for a batch's partition; creates it if there is none."""
        # Before the request: if its response is lost, EndTxn must be sent all the same.
        self._wrote = True
        found = self._partitions.get(batch.partition)
        if found is None or found.topic_id != batch.topic_id:
            found = self._create_sender(batch.partition, batch.topic_id, found)
        return found

    def _create_sender(
        self, partition: TopicPartition, topic_id: TopicId | None, former: PartitionSender | None
    ) -> PartitionSender:
        """Create a partition's sender, instead of one for the topic as it was."""
        topic = partition.topic
        range_ = None
        if topic_id is not None:
            range_ = self._cluster.streams.range_of(topic, topic_id, partition.partition)
        sender = PartitionSender(
            self._cluster,
            self,
            partition,
            self._identity,
            acks=self._options.acks,
            topic_id=topic_id,
            range_=range_,
        )
        if former is not None:
            self._former.append(former)
            if self._identity.transactional_id is None:
                sender.continue_sequences_of(former)
        if topic_id is not None or topic in self._streams:
            self._streams.add(topic)
            put_in_order(sender, [*self._former, *self._partitions.values()])
        self._partitions[partition] = sender
        return sender

    async def _drop(self) -> None:
        senders = [*self._partitions.values(), *self._former]
        self._partitions, self._former = {}, []
        self._dropped += self._waiting_bytes > 0
        self._waiting_bytes = 0
        self._deliveries.clear()
        self._signal()
        # All before anything is awaited: one that runs on may give what it has to a new one.
        for sender in senders:
            sender.cancel()
        for sender in senders:
            await sender.ended()

    async def _ended(self, *, commit: bool, was_unknown: bool) -> ProducerIdentity:
        """Let the coordinator end the transaction; return the identity for the next one."""
        if was_unknown:
            # Without the response to EndTxn the next epoch is unknown, so a new one is requested;
            # InitProducerId aborts a transaction that is still open (E7).
            return await self._initialise(self._identity)
        if self._wrote or self._failure is not None:
            return await self._end_transaction(commit=commit)
        return self._identity

    async def _initialise(self, last: ProducerIdentity | None = None) -> ProducerIdentity:
        """Return a new producer id and epoch; fails if the last one given has been fenced."""
        return await init_producer_id(
            self._cluster,
            self._options.transactional_id,
            self._options.transaction_timeout_ms,
            last,
            checked=_expect_version_2,
        )

    async def _end_transaction(self, *, commit: bool) -> ProducerIdentity:
        """Return the producer id and epoch of the next transaction."""
        identity = self._identity
        deadline = self._cluster.deadline()

        async def attempt() -> EndTxnResponse:
            self._end_is_unknown = True
            answer = await ask_for_end(
                self._cluster, identity, deadline, END_VERSION_MAX, commit=commit
            )
            if answer.error_code:
                code = error_code(answer.error_code)
                self._end_is_unknown = code in RETRIABLE
                verb = "commit" if commit else "abort"
                raise failure(code, f"{verb} of transaction {identity.transactional_id}")
            return answer

        try:
            answer = await retrying(attempt, deadline, self._stale_coordinator)
        except RequestError as error:
            self.failed(error)
            raise
        return ProducerIdentity(
            answer.producer_id, answer.producer_epoch, identity.transactional_id
        )

    def _stale_coordinator(self) -> None:
        if self._options.transactional_id is not None:
            self._cluster.forget_coordinator(TRANSACTION, self._options.transactional_id)

    async def _renew(self, joined: Joined) -> None:
        """Renew the versioned transaction until the writer is closed (V7)."""
        transactions = Transactions(self._cluster)
        while True:
            await asyncio.sleep(joined.renewal_s)
            try:
                await transactions.renew(joined.app, joined.query_id, joined.run_id, joined.version)
            except RequestError as error:
                if error.code not in RETRIABLE:
                    self.failed(error)
                    return


def _expect_version_2(connection: Connection) -> None:
    """Raise RequestError (UNSUPPORTED_VERSION) if a broker supports version 1 only."""
    _, highest = connection.versions.get(ApiKey.END_TXN, (0, 0))
    if highest < END_BUMPS_FROM:
        what = f"transactions of broker {connection.address}"
        raise failure(ErrorCode.UNSUPPORTED_VERSION, what, "version 2 (KIP-890) is needed")
