"""One claim and its connections, in raw messages: its owner goes on with them, dead or alive.

A client library stops when its lease ends; nothing here does. Every value that is written, and the
metadata of every committed offset, begins with the session, so the log shows whose it is.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fencelog.check.history import key_of
from fencelog.client.cluster import Cluster, parse_address
from fencelog.client.sender import ProducerOptions, Sender, open_sender
from fencelog.coordination.ownership.resources import partition_of
from fencelog.errors import ErrorCode, RequestError
from fencelog.rpc.connection import Connection, connect
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
from fencelog.wire.messages.attach_owner import AttachOwnerRequest, AttachOwnerResponse
from fencelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from fencelog.wire.messages.own import OwnRequest, OwnResponse
from fencelog.wire.messages.release_ownership import (
    ReleaseOwnershipRequest,
    ReleaseOwnershipResponse,
)
from fencelog.wire.messages.renew_ownership import RenewOwnershipRequest, RenewOwnershipResponse
from fencelog.wire.own import owned_id, producers_key
from fencelog.wire.primitives import error_code
from fencelog.wire.records import RecordToWrite, build_batch
from fencelog_sim.workload import Stage
from fencelog_sim.workloads.own import ERRORS, encode
from fencelog_sim.workloads.owned_offsets import PATIENCE_S, OffsetProducer

READERS = "readers"
"""The only group."""
NAMES = ("etl", "sink")
"""Of the claims' transactional ids."""
HOWS = ("commit", "commit", "abort", "desert")
"""What becomes of a transaction."""
NOBODY = "-"
"""What the session begins with in what is written without a claim."""
CONNECT_S = 2.0
PRODUCE_VERSION = 9
FETCH_VERSION = 12
COMMIT_VERSION_MAX = 9
FETCH_WAIT_MS = 400
FETCH_BYTES = 16 << 10
TRANSACTION_TIMEOUT_MS = 5_000
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
RENEWALS = 3
"""How many renewals fit into a lease."""


async def dial(stage: Stage) -> Connection:
    """Open a connection of its own. Raises RequestError."""
    address = parse_address(stage.bootstrap)
    return await connect(*address, stage.history.process, Deadline(CONNECT_S))


@dataclass(eq=False)
class Claim:
    """A claim that was granted."""

    stage: Stage
    cluster: Cluster
    group: str | None
    session: str
    epochs: dict[str, int]
    lease_ms: int
    transactional_id: str | None
    control: Connection
    data: Connection | None = None
    reads: Connection | None = None
    sender: Sender | None = None
    offsets: OffsetProducer | None = None
    sent: list[str] = field(default_factory=list)
    """Values of the open transaction."""
    renewal: "asyncio.Task[None] | None" = None
    hurrying: "asyncio.Task[None] | None" = None
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _count: int = 0

    @property
    def epoch(self) -> int:
        """The highest of its resources."""
        return max(self.epochs.values())

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions among its resources."""
        return [found for each in self.epochs if (found := partition_of(each)) is not None]

    # -- the claim itself ------------------------------------------------------------------------

    def keep(self) -> None:
        """Renew the lease from now on."""
        self.renewal = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        with contextlib.suppress(*ERRORS):
            while True:
                await asyncio.sleep(self.lease_ms / 1000 / RENEWALS)
                await self.renew()

    async def renew(self) -> None:
        """Renew the lease once. Raises one of ERRORS."""
        request = RenewOwnershipRequest(group=self.group, session=self.session, epoch=self.epoch)
        answer = await self.cluster.ask(
            self.control, request, RenewOwnershipResponse, Deadline(PATIENCE_S)
        )
        _raise(answer.error_code, f"renewal of {self.session}")

    async def release(self) -> None:
        """End it. Raises one of ERRORS."""
        self._note("release")
        request = ReleaseOwnershipRequest(group=self.group, session=self.session)
        answer = await self.cluster.ask(
            self.control, request, ReleaseOwnershipResponse, Deadline(PATIENCE_S)
        )
        _raise(answer.error_code, f"release of {self.session}")
        self._note("released")

    async def close(self) -> None:
        """Let go of everything at once, as a process that ends."""
        for task in (self.renewal, self.hurrying):
            if task is not None:
                task.cancel()
        if self.sender is not None:
            await self.sender.close()
        for each in (self.control, self.data, self.reads):
            if each is not None:
                each.close()

    async def _attached(self, known: Connection | None) -> Connection:
        """This connection while it lasts; then another one, attached again."""
        if known is not None and not known.closed:
            return known
        found = await dial(self.stage)
        request = AttachOwnerRequest(group=self.group, session=self.session, epoch=self.epoch)
        try:
            answer = await self.cluster.ask(
                found, request, AttachOwnerResponse, Deadline(PATIENCE_S)
            )
            _raise(answer.error_code, f"attachment to {self.session}")
        except BaseException:
            found.close()
            raise
        return found

    # -- what owners do --------------------------------------------------------------------------

    def value(self) -> str:
        """A new value of this owner."""
        self._count += 1
        return f"{self.session}:{self._count}"

    async def write(self, partition: TopicPartition) -> None:
        """Write a record on an attached connection, once. Raises one of ERRORS."""
        async with self._writing:
            self.data = await self._attached(self.data)
        await send_once(self.stage, self.data, partition, self.value(), self.session)

    async def haunt(self, partition: TopicPartition) -> None:
        """Write or commit as if there were no claims, on a new connection. Raises one of ERRORS.

        Nobody's, unless somebody owns it.
        """
        if self.group is not None and self.stage.random.random() < TRANSACTIONAL_SHARE:
            value = f"{NOBODY}{self.value()}"
            await transact_as_nobody(self.stage, self.cluster, partition, value)
            return
        connection = await dial(self.stage)
        try:
            value = f"{NOBODY}{self.value()}"
            if self.group is None:
                await send_once(self.stage, connection, partition, value, self.session)
            else:
                await commit_as_nobody(self.stage, self.cluster, connection, partition, value)
        finally:
            connection.close()

    def hurry(self, writes: int) -> None:
        """Write or commit so often, one right after the other, whatever else its owner does."""
        if self.hurrying is None or self.hurrying.done():
            self.hurrying = asyncio.create_task(self._hurry(writes))

    async def _hurry(self, writes: int) -> None:
        with contextlib.suppress(*ERRORS):
            for number in range(writes):
                partition = self.partitions[number % len(self.partitions)]
                if self.transactional_id is None or (self.group is not None and number % 2):
                    await (self.write if self.group is None else self.commit)(partition)
                elif self.group is None:
                    await self.transact([partition], "desert")
                else:
                    await self.transact_offsets([partition], "commit")

    async def reading(self) -> Connection:
        """The attached connection for fetches. Raises one of ERRORS."""
        self.reads = await self._attached(self.reads)
        return self.reads

    async def read(self, partition: TopicPartition, position: int) -> int:
        """Fetch on an attached connection; returns where to go on. Raises one of ERRORS."""
        connection = await self.reading()
        self._count += 1
        number = self._count
        self._note("read", number=number, partition=key_of(*partition))
        batches = await fetch(connection, partition, position)
        end = max((read_header(each).next_offset for each in batches), default=0)
        self._note("seen", number=number, partition=key_of(*partition), end=end)
        return max(position, end)

    async def commit(self, partition: TopicPartition) -> None:
        """Commit an offset of the group on an attached connection. Raises one of ERRORS."""
        assert self.group is not None
        async with self._writing:
            self.data = await self._attached(self.data)
        metadata = self.value()
        self._note("commit", partition=key_of(*partition), metadata=metadata)
        await commit_offset(self.cluster, self.data, self.group, partition, self._count, metadata)
        self._note("committed", partition=key_of(*partition), metadata=metadata)

    async def transact_offsets(self, partitions: Sequence[TopicPartition], how: str) -> None:
        """Commit offsets of the group in a transaction of the claim's id.

        ``commit``, ``abort`` or ``desert`` it: one that was deserted goes on. Raises one of ERRORS.
        """
        async with self._writing:
            try:
                await self._transact_offsets(partitions, how)
            except ERRORS:
                self.offsets = None
                raise

    async def _transact_offsets(self, partitions: Sequence[TopicPartition], how: str) -> None:
        assert self.group is not None
        assert self.transactional_id is not None
        if self.offsets is None:
            self.offsets = await OffsetProducer.open(
                *(self.stage, self.cluster, self.group, self.transactional_id),
                TRANSACTION_TIMEOUT_MS,
            )
        await self.offsets.begin()
        for partition in partitions:
            metadata = self.value()
            named = {"partition": key_of(*partition), "metadata": metadata, "is_pending": True}
            self._note("commit", **named)
            await self.offsets.commit(partition, self._count, metadata)
            self._note("committed", **named)
        if how != "desert":
            await self.offsets.end(commit=how == "commit")

    async def transact(self, partitions: Sequence[TopicPartition], how: str) -> None:
        """Write in the transaction of the claim's id, and ``commit``, ``abort`` or ``desert`` it.

        One that was deserted goes on. Raises one of ERRORS.
        """
        async with self._writing:
            await self._transact(partitions, how)

    async def _transact(self, partitions: Sequence[TopicPartition], how: str) -> None:
        assert self.transactional_id is not None
        if self.sender is None:
            options = ProducerOptions(
                transactional_id=self.transactional_id,
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            )
            self.sender = await open_sender(self.cluster, options)
        sender = self.sender
        try:
            if not sender.in_transaction:
                self.sent = []
                await sender.begin()
            for partition in partitions:
                value = self.value()
                self._note("write", partition=key_of(*partition), value=value)
                self.sent.append(value)
                await sender.enqueue([encode(partition, [value], self.stage.now())])
            await sender.flush()
            if how == "desert":
                return
            await sender.end(commit=how == "commit")
            self._note("ended", values=self.sent, commit=how == "commit")
        except ERRORS:
            self.sender = None
            await sender.close()
            raise

    def _note(self, what: str, **fields: object) -> None:
        self.stage.history.note(what=what, session=self.session, group=self.group, **fields)


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
    _raise(result.error_code, f"commit of {partition} for group {group}")


async def commit_as_nobody(
    stage: Stage, cluster: Cluster, connection: Connection, partition: TopicPartition, value: str
) -> None:
    """Commit an offset of the readers without a claim, once. Raises RequestError."""
    named = {"partition": key_of(*partition), "metadata": value}
    stage.history.note(what="nobody commits", **named)
    await commit_offset(cluster, connection, READERS, partition, 0, value)
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


async def own(
    stage: Stage, cluster: Cluster, request: OwnRequest, gives_up: Callable[[], bool]
) -> Claim | None:
    """Ask until the claim is granted, refused (None), or given up while it waits (None).

    Raises RequestError where the connection is lost.
    """
    control = await dial(stage)
    try:
        answer = await _ask(stage, cluster, control, request, gives_up)
    except BaseException:
        control.close()
        raise
    if answer is None:
        control.close()
        return None
    assert answer.session is not None
    return Claim(
        stage=stage,
        cluster=cluster,
        group=request.group,
        session=answer.session,
        epochs={each.resource: each.epoch for each in answer.resources},
        lease_ms=answer.lease_ms,
        transactional_id=answer.transactional_id,
        control=control,
    )


async def _ask(
    stage: Stage,
    cluster: Cluster,
    control: Connection,
    request: OwnRequest,
    gives_up: Callable[[], bool],
) -> OwnResponse | None:
    def note(what: str, **fields: object) -> None:
        stage.history.note(what=what, id=request.claim_id, group=request.group, **fields)

    wanted = [[each.resource, each.generation, each.prev_epoch] for each in request.resources]
    while True:
        note("own", wanted=wanted, waits=request.wait_ms > 0)
        answer = await cluster.ask(control, request, OwnResponse, Deadline(PATIENCE_S))
        if not answer.error_code:
            note(
                "granted",
                session=answer.session,
                epochs={each.resource: each.epoch for each in answer.resources},
                generations={each.resource: each.generation for each in answer.resources},
                fences={each.resource: each.fence_offset for each in answer.resources},
            )
            return answer
        if answer.error_code != ErrorCode.CLAIM_WAITING:
            note("refused", error=error_code(answer.error_code).name, text=answer.error_message)
            return None
        note("waiting", place=answer.place)
        if gives_up():
            return None


def _raise(code: int, what: str) -> None:
    if code:
        raise RequestError(error_code(code), what)
