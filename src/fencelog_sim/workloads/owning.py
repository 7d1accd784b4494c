"""One claim and its connections, in raw messages: its owner goes on with them, dead or alive.

A client library stops when its lease ends; nothing here does. Every value that is written, and the
metadata of every committed offset, begins with the session, so the log shows whose it is.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fencelog.check.history import key_of
from fencelog.client.cluster import GROUP, OWNERSHIP, Address, Cluster
from fencelog.client.retry import STALE_ROUTE
from fencelog.client.sender import ProducerOptions, Sender, open_sender
from fencelog.coordination.ownership.resources import partition_of
from fencelog.errors import ErrorCode, RequestError
from fencelog.rpc.connection import Connection
from fencelog.rpc.deadline import Deadline
from fencelog.types import TopicPartition
from fencelog.wire.batch import read_header
from fencelog.wire.messages.attach_owner import AttachOwnerRequest, AttachOwnerResponse
from fencelog.wire.messages.own import OwnRequest, OwnResponse
from fencelog.wire.messages.release_ownership import (
    ReleaseOwnershipRequest,
    ReleaseOwnershipResponse,
)
from fencelog.wire.messages.renew_ownership import RenewOwnershipRequest, RenewOwnershipResponse
from fencelog.wire.primitives import error_code
from fencelog_sim.workload import Stage
from fencelog_sim.workloads.own import ERRORS, encode
from fencelog_sim.workloads.owned_offsets import PATIENCE_S, OffsetProducer
from fencelog_sim.workloads.owned_requests import (
    NOBODY,
    TRANSACTIONAL_SHARE,
    commit_as_nobody,
    commit_offset,
    fetch,
    raise_for,
    send_once,
    transact_as_nobody,
)
from fencelog_sim.workloads.routes import coordinated, coordinator_of, dial, leader_of, led

TRANSACTION_TIMEOUT_MS = 5_000
RENEWALS = 3
"""How many renewals fit into a lease."""


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
    """The one on which it was granted: the claim ends with it."""
    renewing: dict[Address, Connection] = field(default_factory=dict)
    """To brokers that have the shard instead of the one that granted."""
    data: dict[Address, Connection] = field(default_factory=dict)
    """Attached, for writes and commits: one at each broker that leads what is written."""
    reads: dict[Address, Connection] = field(default_factory=dict)
    """Attached, for fetches."""
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
                try:
                    await self.renew()
                except RequestError as error:
                    # The shard has moved, or moves: the claim has not ended by that.
                    if error.code not in STALE_ROUTE or self.control.closed:
                        raise

    async def renew(self) -> None:
        """Renew the lease once. Raises one of ERRORS."""
        request = RenewOwnershipRequest(group=self.group, session=self.session, epoch=self.epoch)
        with coordinated(self.cluster, OWNERSHIP, self._key):
            answer = await self.cluster.ask(
                await self._renewing(), request, RenewOwnershipResponse, Deadline(PATIENCE_S)
            )
            raise_for(answer.error_code, f"renewal of {self.session}")

    @property
    def _key(self) -> str:
        return self.group or ""

    async def _renewing(self) -> Connection:
        """A connection to the broker of the shard: the claim's own, while that one has it."""
        address = await coordinator_of(self.stage, self.cluster, OWNERSHIP, self._key)
        if self.control.address == "{}:{}".format(*address):
            return self.control
        found = self.renewing.get(address)
        if found is None or found.closed:
            found = self.renewing[address] = await dial(self.stage, address)
        return found

    async def release(self) -> None:
        """End it. Raises one of ERRORS."""
        self._note("release")
        request = ReleaseOwnershipRequest(group=self.group, session=self.session)
        with coordinated(self.cluster, OWNERSHIP, self._key):
            answer = await self.cluster.ask(
                await self._renewing(), request, ReleaseOwnershipResponse, Deadline(PATIENCE_S)
            )
            raise_for(answer.error_code, f"release of {self.session}")
        self._note("released")

    async def close(self) -> None:
        """Let go of everything at once, as a process that ends."""
        for task in (self.renewal, self.hurrying):
            if task is not None:
                task.cancel()
        if self.sender is not None:
            await self.sender.close()
        self.control.close()
        for pool in (self.renewing, self.data, self.reads):
            for each in pool.values():
                each.close()

    async def _attached(self, pool: dict[Address, Connection], address: Address) -> Connection:
        """The connection there while it lasts; then another one, attached again."""
        known = pool.get(address)
        if known is not None and not known.closed:
            return known
        found = await dial(self.stage, address)
        request = AttachOwnerRequest(group=self.group, session=self.session, epoch=self.epoch)
        try:
            answer = await self.cluster.ask(
                found, request, AttachOwnerResponse, Deadline(PATIENCE_S)
            )
            raise_for(answer.error_code, f"attachment to {self.session}")
        except BaseException:
            found.close()
            raise
        pool[address] = found
        return found

    # -- what owners do --------------------------------------------------------------------------

    def value(self) -> str:
        """A new value of this owner."""
        self._count += 1
        return f"{self.session}:{self._count}"

    async def write(self, partition: TopicPartition) -> None:
        """Write a record on an attached connection, once. Raises one of ERRORS."""
        with led(self.cluster, partition):
            async with self._writing:
                address = await leader_of(self.stage, self.cluster, partition)
                connection = await self._attached(self.data, address)
            await send_once(self.stage, connection, partition, self.value(), self.session)

    async def haunt(self, partition: TopicPartition) -> None:
        """Write or commit as if there were no claims, on a new connection. Raises one of ERRORS.

        Nobody's, unless somebody owns it.
        """
        if self.group is not None and self.stage.random.random() < TRANSACTIONAL_SHARE:
            value = f"{NOBODY}{self.value()}"
            await transact_as_nobody(self.stage, self.cluster, partition, value)
            return
        value = f"{NOBODY}{self.value()}"
        if self.group is not None:
            await commit_as_nobody(self.stage, self.cluster, partition, value)
            return
        with led(self.cluster, partition):
            address = await leader_of(self.stage, self.cluster, partition)
            connection = await dial(self.stage, address)
            try:
                await send_once(self.stage, connection, partition, value, self.session)
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

    async def fetched(self, partition: TopicPartition, position: int) -> list[memoryview]:
        """Fetch once on an attached connection. Raises one of ERRORS."""
        with led(self.cluster, partition):
            address = await leader_of(self.stage, self.cluster, partition)
            connection = await self._attached(self.reads, address)
            return await fetch(connection, partition, position)

    async def read(self, partition: TopicPartition, position: int) -> int:
        """Fetch on an attached connection; returns where to go on. Raises one of ERRORS."""
        with led(self.cluster, partition):
            address = await leader_of(self.stage, self.cluster, partition)
            connection = await self._attached(self.reads, address)
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
        with coordinated(self.cluster, GROUP, self.group):
            async with self._writing:
                address = await coordinator_of(self.stage, self.cluster, GROUP, self.group)
                connection = await self._attached(self.data, address)
            metadata = self.value()
            self._note("commit", partition=key_of(*partition), metadata=metadata)
            await commit_offset(
                self.cluster, connection, self.group, partition, self._count, metadata
            )
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


async def own(
    stage: Stage, cluster: Cluster, request: OwnRequest, gives_up: Callable[[], bool]
) -> Claim | None:
    """Ask until the claim is granted, refused (None), or given up while it waits (None).

    Raises RequestError where the connection is lost.
    """
    key = request.group or ""
    with coordinated(cluster, OWNERSHIP, key):
        control = await dial(stage, await coordinator_of(stage, cluster, OWNERSHIP, key))
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
            error = error_code(answer.error_code)
            note("refused", error=error.name, text=answer.error_message)
            if error in STALE_ROUTE:
                cluster.forget_coordinator(OWNERSHIP, request.group or "")
            return None
        note("waiting", place=answer.place)
        if gives_up():
            return None
