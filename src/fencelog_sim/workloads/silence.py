"""What must happen although nobody asks for it: one client, one request, then silence.

Where others keep a broker busy, a wake-up that was lost is made up for by the next request. Here
none comes: a fetch waits for one record or for its time to pass, a write waits for its sync, a
transaction and a member of a group run out. Each is looked at once, after it was due.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from fencelog.client.admin import Admin
from fencelog.client.cluster import Cluster
from fencelog.client.groups import Groups
from fencelog.client.sender import ProducerOptions, open_sender
from fencelog.client.transaction_admin import TransactionAdmin
from fencelog.errors import ErrorCode, FencelogError, RequestError
from fencelog.types import TopicPartition
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.hot import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    read_fetch_response,
    write_fetch_request,
)
from fencelog_sim.workload import Stage
from fencelog_sim.workloads.member import GroupMember
from fencelog_sim.workloads.own import OwnWriter, open_cluster
from fencelog_sim.workloads.plans import Send, completed, invoked, unknown
from fencelog_sim.workloads.settling import insist

T = TypeVar("T")

PROMPT_S = 2.0
"""Far more than an undisturbed broker needs for anything that is due."""
SILENCE_S = 1.0
LONG_POLL_S = 20.0
TIMEOUT_MS = 700
EXPIRY_CHECK_S = 5.0
"""How often the broker looks for what nobody uses."""
FETCH_VERSION = 12
FETCH_BYTES = 1 << 20
REPLICATED, TRANSACTIONAL = 0, 1


class LateError(FencelogError):
    """Something was due, and did not happen by itself."""


class Silence:
    """The checks of one quiet cluster, on one partition, one after the other."""

    def __init__(self, stage: Stage, cluster: Cluster, partition: TopicPartition) -> None:
        """Nobody else may use the cluster meanwhile."""
        self._stage = stage
        self._cluster = cluster
        self._partition = partition
        self._number = 0

    async def prepare(self) -> None:
        """Use what connects brokers: a connection that has died in silence is noticed by that."""
        if "," in self._stage.bootstrap:
            await insist(self._stage, "a transaction", self._use_connections)

    async def check(self) -> None:
        """Raise LateError for the first thing that did not happen in time."""
        await self._empty_poll()
        for transactional in (False, True):
            await self._woken_poll(transactional=transactional)
        await self._expiring_transaction()
        await self._silent_member()
        if self._stage.scale.expiry_s:
            await self._expiry(self._stage.scale.expiry_s)

    async def _use_connections(self) -> None:
        writer = await self._writer(f"{self._partition.topic}-silent", 60_000)
        try:
            await self._write(writer, commits=True)
        finally:
            await writer.close()

    async def _empty_poll(self) -> None:
        """A fetch without records is answered when its time has passed, not before."""
        began = self._stage.now()
        got = await self._promptly("a fetch that waits in vain", self._fetch(SILENCE_S), SILENCE_S)
        if got or self._stage.now() - began < SILENCE_S:
            raise LateError(f"a fetch at the end returned {got} bytes too early")

    async def _woken_poll(self, *, transactional: bool) -> None:
        """A fetch that waits is answered by the one write, and that by its own sync."""
        kind = "a transaction" if transactional else "a write"
        identifier = f"{self._partition.topic}-silent" if transactional else None
        writer = await self._writer(identifier, 60_000)
        level = TRANSACTIONAL if transactional else REPLICATED
        polling = asyncio.create_task(self._fetch(LONG_POLL_S, level))
        try:
            await asyncio.sleep(SILENCE_S)
            await self._promptly(kind, self._write(writer, commits=transactional))
            got = await self._promptly(f"a fetch that waits for {kind}", polling)
        finally:
            polling.cancel()
            await writer.close()
        if not got:
            raise LateError(f"a fetch that waited for {kind} was answered without it")

    async def _expiring_transaction(self) -> None:
        """A deserted transaction ends by its timeout, which wakes who waits for its end."""
        writer = await self._writer(f"{self._partition.topic}-deserted", TIMEOUT_MS)
        send = self._send()
        invocation = self._stage.history.invoke(invoked([send]), transactional=True)
        try:
            await writer.begin()
            await writer.send(send.partition, send.values)
            await writer.flush()
        finally:
            await writer.close()
        invocation.failed(unknown([send]), "deserted")
        poll = self._fetch(LONG_POLL_S, TRANSACTIONAL)
        got = await self._promptly("the end of a deserted transaction", poll, TIMEOUT_MS / 1000)
        if not got:
            raise LateError("the end of a deserted transaction woke nobody")

    async def _silent_member(self) -> None:
        """A member without heartbeats is out when its session has ended."""
        session_s = self._stage.scale.session_s
        group = f"{self._partition.topic}-silent"
        member = GroupMember(
            self._cluster,
            self._cluster,
            group,
            [self._partition],
            session_s=session_s,
            instance_id=None,
            adds_offsets=False,
        )
        try:
            await insist(self._stage, f"join of {group}", member.join)
        finally:
            await member.close()
        await asyncio.sleep(session_s + PROMPT_S)
        found = await Groups(self._cluster).describe(group)
        if found.members:
            raise LateError(f"{group} has {len(found.members)} members long after their session")

    async def _expiry(self, after_s: float) -> None:
        """Offsets and transactional ids that nobody uses are forgotten, and no younger ones."""
        admin, transactions = Admin(self._cluster), TransactionAdmin(self._cluster)
        old, young = (f"{self._partition.topic}-{age}" for age in ("old", "young"))
        for name in (old, young):
            await insist(
                self._stage,
                f"offset of {name}",
                lambda name=name: admin.commit_offsets(name, {self._partition: 0}),  # type: ignore[misc]
            )
            await (await self._writer(name, TIMEOUT_MS)).close()
            await asyncio.sleep(after_s / 2)
        await asyncio.sleep(EXPIRY_CHECK_S + PROMPT_S)
        for name, is_kept in ((old, False), (young, True)):
            if bool(await admin.committed_offsets(name)) is not is_kept:
                raise LateError(f"the offset of {name} is {'gone' if is_kept else 'still there'}")
            if await _is_known(transactions, name) is not is_kept:
                raise LateError(f"the id {name} is {'gone' if is_kept else 'still there'}")

    # -- requests ------------------------------------------------------------------------------

    async def _writer(self, transactional_id: str | None, timeout_ms: int) -> OwnWriter:
        options = ProducerOptions(
            transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
        )
        sender = await insist(
            self._stage, "silent producer", lambda: open_sender(self._cluster, options)
        )
        return OwnWriter(sender, self._stage)

    def _send(self) -> Send:
        self._number += 1
        return Send(self._partition, [f"{self._stage.history.process}.silent.{self._number}"])

    async def _write(self, writer: OwnWriter, *, commits: bool) -> None:
        send = self._send()
        invocation = self._stage.history.invoke(invoked([send]), transactional=commits)
        if commits:
            await writer.begin()
        await writer.send(send.partition, send.values)
        offsets = await writer.flush()
        if commits:
            invocation.committing()
            await writer.commit()
        invocation.ok(completed([send], offsets, []))

    async def _fetch(self, wait_s: float, isolation: int = REPLICATED) -> int:
        """Fetch from the end that a reader of this isolation sees; return the bytes."""
        shown = "transactional" if isolation == TRANSACTIONAL else "replicated"
        ends = await Admin(self._cluster).offsets([self._partition], "latest", shown)  # type: ignore[arg-type]
        topic, partition = self._partition
        asked = FetchPartition(partition, -1, ends[self._partition], -1, FETCH_BYTES)
        request = FetchRequest(
            -1,
            int(wait_s * 1000),
            1,
            FETCH_BYTES,
            isolation,
            0,
            -1,
            [FetchTopic(topic, None, [asked])],
        )
        other = open_cluster(self._stage)
        try:
            deadline = other.deadline()
            connection = await other.leader(self._partition, deadline, "fetches")
            sent = connection.start(
                ApiKey.FETCH, FETCH_VERSION, [write_fetch_request(FETCH_VERSION, request)]
            )
            answer = read_fetch_response(await sent, FETCH_VERSION)
        finally:
            await other.close()
        (fetched,) = answer.topics[0].partitions
        if fetched.error is not ErrorCode.NONE:
            raise LateError(f"a fetch at the end of {self._partition}: {fetched.error.name}")
        return sum(len(records) for records in fetched.records)

    async def _promptly(self, what: str, waiting: Awaitable[T], after_s: float = 0.0) -> T:
        """Wait for what is due after this time, and no longer than it may take."""
        try:
            async with asyncio.timeout(after_s + PROMPT_S):
                return await waiting
        except TimeoutError:
            raise LateError(f"{what}: nothing for {PROMPT_S:g} s after it was due") from None


async def _is_known(transactions: TransactionAdmin, transactional_id: str) -> bool:
    try:
        await transactions.describe(transactional_id)
    except RequestError as error:
        if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise
        return False
    return True
