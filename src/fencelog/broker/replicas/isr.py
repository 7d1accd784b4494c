"""Writes the in-sync replicas of the partitions that this broker leads to the metadata store.

The leader writes them itself, in one commit that compares the partition's key, its own registration
and those of the replicas that join. From before the write is sent until its outcome is known, the
high watermark waits for the members before and after it. An outcome that is unknown is asked for
until it is known; nothing else is proposed for the partition meanwhile.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from fencelog.broker.metadata.cluster_state import (
    Changed,
    ClusterState,
    PartitionKey,
    StoredState,
    broker_key,
)
from fencelog.broker.metadata.known_commits import batched, commit_known
from fencelog.broker.replicas.led import Key, Led, LedPartitions
from fencelog.coordination.controller.model import PartitionState
from fencelog.coordination.controller.rules import (
    behind,
    given_up,
    isr_changed,
    isr_size_needed,
)
from fencelog.errors import CorruptionError, StorageError, UnknownOutcomeError
from fencelog.ports import MetadataStore, MetadataWrite
from fencelog.types import Instant, LeaderEpoch, NodeId, TopicId, TopicPartition

log = logging.getLogger(__name__)

RETRY_S = 0.5
"""After which time a store that has not answered is asked again."""


class _Proposal(NamedTuple):
    """A change of one partition's in-sync replicas, on its way to the store."""

    led: Led
    state: PartitionState
    write: MetadataWrite
    unchanged: dict[str, int]


class IsrWriter:
    """Proposes and writes changes, many partitions in one commit."""

    def __init__(
        self,
        store: MetadataStore,
        cluster: ClusterState,
        led: LedPartitions,
        incarnation: str,
        life_of: Callable[[NodeId], str | None],
        min_isr: Callable[[TopicId], int],
        lag_s: float,
    ) -> None:
        """``incarnation``: this broker's life. ``life_of``: the one in which a follower speaks."""
        self._store = store
        self._cluster = cluster
        self._led = led
        self._incarnation = incarnation
        self._life_of = life_of
        self._min_isr = min_isr
        self._lag_s = lag_s
        self._due: dict[Key, None] = {}
        self._woken: asyncio.Future[None] | None = None
        led.caught_up = self.look_at

    def look_at(self, key: Key) -> None:
        """A partition's in-sync replicas may have to change."""
        self._due[key] = None
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def run(self) -> None:
        """Write changes until cancelled; all partitions are looked at twice in each ``lag_s``."""
        self._cluster.subscribe(self._noticed)
        try:
            await self._run()
        finally:
            self._cluster.unsubscribe(self._noticed)

    def _noticed(self, changed: Changed) -> None:
        """``min.insync.replicas`` may be another: it is in force at once, not at the next write."""
        if not (changed.settings or changed.topics):
            return
        named = {
            stored.topic.topic_id
            for name in changed.topics
            if (stored := self._cluster.topics.get(name)) is not None
        }
        for led in self._led.all():
            known = self._cluster.partitions.get(PartitionKey(*led.key))
            if known is not None and (changed.settings or led.key[0] in named):
                self.adopt(led, known)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        next_round = loop.time() + self._lag_s / 2
        while True:
            if loop.time() >= next_round:
                next_round = loop.time() + self._lag_s / 2
                self._due = dict.fromkeys(each.key for each in self._led.all())
            due, self._due = self._due, {}
            for part in batched(due):
                found = [each for each in map(self._propose, part) if each is not None]
                if found:
                    await self._write(found)
            if not self._due:
                await self._sleep(next_round)

    async def _sleep(self, until: float) -> None:
        self._woken = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout_at(until):
                await self._woken
        except TimeoutError:
            pass
        finally:
            self._woken = None

    # -- one partition ---------------------------------------------------------------------------

    def _propose(self, key: Key) -> _Proposal | None:
        """Return a partition's change, which counts from this step on; None without one."""
        led, stored = self._led.get(key), self._cluster.partitions.get(PartitionKey(*key))
        if led is None or stored is None or stored.version < led.version:
            return None
        state, progress = stored.state, led.progress
        if state.leader_epoch != progress.leader_epoch or {*state.isr} != {*progress.isr}:
            return None
        isr = progress.isr_change(
            Instant(asyncio.get_running_loop().time()),
            self._lag_s,
            log_end=led.partition.log.log_end_offset,
            log_start=led.partition.log.log_start_offset,
        )
        own = self._version_of(state.leader, self._incarnation)
        if isr is None or own is None:
            return None
        unchanged = {broker_key(state.leader): own}
        members = []
        for node in isr:
            if node not in state.isr:
                # The life that has acknowledged: another one may have lost what that one had.
                version = self._version_of(node, self._life_of(node))
                if version is None or self._cluster.brokers[node].registration.is_full:
                    continue  # one without room would leave again, after all have waited for it
                unchanged[broker_key(node)] = version
            members.append(node)
        if {*members} == {*state.isr}:
            return None
        changed = isr_changed(state, members, self._min_isr(TopicId(key[0])))
        progress.proposed(members)
        text = PartitionKey(*key).text
        write = MetadataWrite(text, changed.encode(), stored.version)
        return _Proposal(led, changed, write, unchanged)

    def _version_of(self, node: NodeId, incarnation: str | None) -> int | None:
        """Return the version of a broker's registration in this life."""
        broker = self._cluster.brokers.get(node)
        if broker is None or broker.registration.incarnation != incarnation:
            return None
        return broker.version

    def adopt(self, led: Led, stored: StoredState) -> None:
        """The store has this state of a partition that is led here, in the same epoch."""
        if led.progress.is_settled and stored.version >= led.version:
            self._settle(led, stored.state, stored.version)
            self.look_at(led.key)

    def _adopt_newer(self, led: Led) -> None:
        """What was seen while a write of ours was on its way was left: it counts now."""
        known = self._cluster.partitions.get(PartitionKey(*led.key))
        if known is not None and known.version > led.version:
            self.adopt(led, known)

    def _settle(self, led: Led, state: PartitionState, version: int) -> None:
        """These are the members, and no write of ours is on its way any more."""
        if state.leader_epoch != led.progress.leader_epoch:
            return  # it is led by another broker, or in another life: that is applied elsewhere
        led.version = version
        before = {*led.progress.isr}
        led.progress.placed(state.replicas)
        # In this order: the smaller set must not move the watermark with the older requirement.
        led.progress.require(isr_size_needed(state, self._min_isr(TopicId(led.key[0]))))
        high_watermark = led.progress.settled(state.isr)
        led.partition.advance(high_watermark)
        self._led.settled(led.key)
        if before != {*state.isr}:
            log.info(
                "%s: in sync are %s in leader epoch %d",
                led.partition.name,
                ", ".join(map(str, state.isr)),
                state.leader_epoch,
            )
            self._led.changed(led.key)  # who has left says again where it is

    async def leave(self, key: Key, node: NodeId) -> bool:
        """Take this broker, whose files have failed, out of a partition's in-sync replicas.

        It is not eligible either then, and leads no more; returns when the copy shows it. False,
        with nothing written, if no other live replica has all that is committed. Raises
        StorageError.
        """
        name = PartitionKey(*key)
        while (stored := self._cluster.partitions.get(name)) is not None:
            left = given_up(stored.state, node, self._cluster.brokers)
            if left is None or left == stored.state:
                return left is not None
            write = MetadataWrite(name.text, left.encode(), stored.version)
            await commit_known(self._store, [write])
            await self._changed(name, stored)
        return False

    async def wait_for_operator(
        self, key: Key, partition: TopicPartition, newest: LeaderEpoch
    ) -> None:
        """Let nobody lead a partition of which this broker's replica is newer than the metadata.

        ``newest`` is that replica's last leader epoch. Before it is opened: by what is stored, its
        newest records would count as damage, or be cut as what the leader does not have. Returns
        when the copy shows a newer epoch.
        """
        name = PartitionKey(*key)
        while (stored := self._cluster.partitions.get(name)) is not None:
            waiting = behind(stored.state, newest)
            if waiting is None:
                return
            log.error(
                "%s: this replica was written in leader epoch %d, the metadata store is at %d: it "
                "has lost changes, as if an older backup of it was restored. Nobody leads the "
                "partition until an operator elects a replica; `fencelog partition elect %s/%d "
                "--broker N` shows what each of them has",
                partition,
                newest,
                stored.state.leader_epoch,
                *partition,
            )
            write = MetadataWrite(name.text, waiting.encode(), stored.version)
            try:
                await commit_known(self._store, [write])
                await self._changed(name, stored)
            except StorageError as error:
                log.warning("%s: stopping its leader again: %s", partition, error)
                await asyncio.sleep(RETRY_S)

    async def _changed(self, name: PartitionKey, known: StoredState) -> None:
        """Return once this broker has seen another state of a partition than this one."""
        await self._cluster.until(lambda: self._cluster.partitions.get(name) != known)

    # -- the store -------------------------------------------------------------------------------

    async def _write(self, proposals: Sequence[_Proposal]) -> None:
        """Write these changes, together if that succeeds, and settle them."""
        try:
            is_stored = await self._commit(proposals)
        except StorageError as error:
            log.warning("the in-sync replicas could not be written: %s", error)
            for each in proposals:  # nothing of it is stored
                each.led.progress.settled(each.led.progress.isr)
                self._led.changed(each.led.key)
                self._led.settled(each.led.key)
                self._adopt_newer(each.led)
            await asyncio.sleep(RETRY_S)
            return
        if is_stored:
            for each in proposals:
                assert each.write.expected_version is not None
                self._settle(each.led, each.state, each.write.expected_version + 1)
                self._adopt_newer(each.led)
        elif len(proposals) > 1:
            for each in proposals:
                await self._write([each])
        else:
            await self._read(proposals[0])

    async def _commit(self, proposals: Iterable[_Proposal]) -> bool:
        """Return whether all of it is stored; False: none. Raises StorageError: none, too."""
        writes = [each.write for each in proposals]
        unchanged: dict[str, int] = {}
        for each in proposals:
            unchanged |= each.unchanged
        is_doubtful = False
        while True:
            try:
                return await commit_known(self._store, writes, unchanged=unchanged)
            except StorageError as error:
                # Once an outcome was unknown, what is refused now may be stored since then.
                is_doubtful = is_doubtful or isinstance(error, UnknownOutcomeError)
                if not is_doubtful:
                    raise
                log.warning("asking again whether the in-sync replicas are stored: %s", error)
                await asyncio.sleep(RETRY_S)

    async def _read(self, proposal: _Proposal) -> None:
        """Another write came first: take what is stored."""
        key = proposal.write.key
        found = await self._get(key)
        if found is None:
            return  # the topic was deleted
        try:
            state = PartitionState.decode(key, found[0])
        except CorruptionError as error:
            log.error("%s", error)  # noqa: TRY400 - what another wrote needs no traceback
            return
        self._settle(proposal.led, state, found[1])
        self._adopt_newer(proposal.led)

    async def _get(self, key: str) -> tuple[bytes, int] | None:
        while True:
            try:
                return await self._store.get(key)
            except StorageError as error:
                log.warning("asking again for %s: %s", key, error)
                await asyncio.sleep(RETRY_S)
