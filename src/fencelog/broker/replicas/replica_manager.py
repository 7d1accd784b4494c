"""Brings this broker's replicas to what the cluster's metadata says of them.

For each partition only the newest state counts, whatever was seen before it. A change that needs
no wait is made in the step in which it is seen; what opens, cuts or removes files runs beside the
others, one at a time for each partition, and then the newest state is looked at again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial

from fencelog.broker.metadata.catalog import INTERNAL_TOPICS, Topic
from fencelog.broker.metadata.cluster_state import Changed, ClusterState, PartitionKey, StoredState
from fencelog.broker.network.time_slices import TimeSlices
from fencelog.broker.partitions.concurrency import CONCURRENCY_MAX
from fencelog.broker.partitions.partition import Partition
from fencelog.broker.peers.identity import Identity
from fencelog.broker.replicas.fetcher import Fetcher
from fencelog.broker.replicas.isr import IsrWriter
from fencelog.broker.replicas.leaders import Leaders
from fencelog.broker.replicas.led import Key, Led, LedPartitions, leadership
from fencelog.broker.replicas.logs import Logs
from fencelog.broker.replicas.openings import Openings
from fencelog.broker.replicas.removals import Removals
from fencelog.broker.replicas.repair import Step, next_step
from fencelog.broker.replicas.replica import Replica, Work
from fencelog.coordination.controller.model import NO_LEADER, PartitionState
from fencelog.errors import CorruptionError, ExhaustedError, NotLeaderError, StorageError
from fencelog.replication.leader import LeaderProgress
from fencelog.types import Instant, LeaderEpoch, NodeId, Offset, TopicId, TopicPartition

log = logging.getLogger(__name__)

RETRY_S = 1.0
"""After which time a step that failed, or a leader's snapshot, is tried again."""


class ReplicaManager:
    """Owner of this broker's replicas in a cluster."""

    def __init__(
        self,
        identity: Identity,
        cluster: ClusterState,
        logs: Logs,
        led: LedPartitions,
        isr: IsrWriter,
        min_isr: Callable[[TopicId], int],
        leaders: Leaders,
        *,
        all_replicas: bool,
    ) -> None:
        """Nothing is done before ``run``."""
        self._identity = identity
        self._cluster = cluster
        self._logs = logs
        self._led = led
        self._isr = isr
        self._min_isr = min_isr
        self._leaders = leaders
        self._all_replicas = all_replicas
        self._time_slices = TimeSlices()
        self._replicas: dict[Key, Replica] = {}
        self._names: set[TopicPartition] = set()
        """Those of all replicas: a topic of the same name waits until a deleted one is removed."""
        self._fetchers: dict[NodeId, tuple[Fetcher, asyncio.Task[None]]] = {}
        self._following: dict[Key, NodeId] = {}
        self._due: dict[Key, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._limit = asyncio.Semaphore(CONCURRENCY_MAX)
        self._news: asyncio.Future[None] | None = None
        self._failure: BaseException | None = None
        """An internal error of a task, which ends ``run``."""
        self._openings = Openings()
        self._removals = Removals(logs, self._limit, self._removal_failed)
        self.removed: Callable[[TopicId], Awaitable[None]] = lambda _: asyncio.sleep(0)
        """Stores that nothing of a deleted topic is here any more."""
        self.led_here: Callable[[TopicPartition], None] = lambda name: None
        """A leadership begins here, in this step."""
        self.resigned: Callable[[TopicPartition], None] = lambda name: None
        """A leadership has ended here, in this step."""
        self.exhausted: Callable[[], None] = lambda: None
        """Something could not be written for lack of room."""
        cluster.subscribe(self._changed)

    async def run(self) -> None:
        """Follow the metadata until cancelled; an internal error of a stream ends it, too."""
        try:
            self._mark(self._cluster.partitions)
            while True:
                for topic_id in self._cluster.deleted:
                    self._begin_removal(topic_id)  # before a topic of the same name is opened
                due, self._due = list(self._due), {}
                async for key in self._time_slices.each(due):
                    self._look(key)
                if self._failure is not None:
                    raise self._failure
                if not self._due:
                    self._news = asyncio.get_running_loop().create_future()
                    await self._news
        finally:
            await self._stop()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()
            self._wake()

    async def _stop(self) -> None:
        self._cluster.unsubscribe(self._changed)
        self._openings.end()
        for fetcher, _ in self._fetchers.values():
            fetcher.close()
        ending = [*(task for _, task in self._fetchers.values()), *self._tasks]
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)

    async def opened(self, topic: Topic) -> None:
        """Return when this broker's replicas of a topic are open and have roles, or cannot."""
        topic_id, known = topic.topic_id, self._cluster.partitions
        await self._openings.until(
            topic_id, lambda: all(self._is_ready(each) for each in known if each[0] == topic_id)
        )

    def _is_ready(self, key: Key) -> bool:
        stored, replica = self._cluster.partitions[PartitionKey(*key)], self._replicas.get(key)
        if self._identity.node_id not in stored.state.replicas:
            return True
        if replica is None:
            name = self._logs.name_of(key)
            return name is not None and self._removals.is_stuck(name.topic)
        if replica.is_busy:
            return False
        return replica.is_offline or replica.leader_epoch >= stored.state.leader_epoch

    # -- what has changed ------------------------------------------------------------------------

    def _changed(self, changed: Changed) -> None:
        self._mark(changed.partitions)
        for name in changed.topics & self._cluster.topics.keys():
            # Of a topic that took several commits, partitions have come before it.
            topic = self._cluster.topics[name].topic
            keys = (PartitionKey(topic.topic_id, index) for index in range(topic.partitions))
            self._mark(key for key in keys if key not in self._replicas)
            gone = (PartitionKey(topic.topic_id, index) for index in topic.without_files)
            self._mark(key for key in gone if (each := self._replicas.get(key)) and each.has_files)
        if changed.brokers:  # one may have come that can lead in the place of a failed replica
            self._mark(key for key, each in self._replicas.items() if each.is_offline)
        if changed.deleted:
            self._removals.forget(changed.deleted - self._cluster.deleted.keys())
            self._wake()

    def _mark(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._due[key] = None
        if self._due:
            self._wake()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _look(self, key: Key) -> None:
        """Do what the newest state of a partition asks for, now or in a task."""
        replica = self._replicas.get(key)
        if replica is not None and replica.is_busy:
            return  # looked at again when that is done
        work = self._next(key, replica)
        if work is None:
            self._openings.look_again(key[0])
            return
        replica = self._replicas[key]
        replica.is_busy = True
        self._begin(self._carry_out(key, replica, work))

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _next(self, key: Key, replica: Replica | None) -> Coroutine[None, None, None] | None:
        """Return what has to be awaited before the newest state can be in force."""
        if key[0] in self._cluster.deleted:
            return None
        stored = self._cluster.partitions.get(PartitionKey(*key))
        if stored is None or self._identity.node_id not in stored.state.replicas:
            return None
        if replica is None:
            name = self._logs.name_of(key)
            if name is None or name in self._names or self._removals.holds(name.topic):
                return None  # the topic is not known any more, or a deleted one has these files
            self._names.add(name)
            replica = self._replicas[key] = Replica(name)
            return self._open(key, replica, stored.state.leader_epoch)
        if replica.is_offline:
            return self._repair(key, replica, stored)
        partition = replica.partition
        return None if partition is None else self._follow_on(key, replica, partition, stored)

    def _follow_on(
        self, key: Key, replica: Replica, partition: Partition, stored: StoredState
    ) -> Coroutine[None, None, None] | None:
        """Take the state's role; return what its files need first, if that is still so."""
        work, replica.work = replica.work, None
        if partition.log.has_files and self._logs.is_without_files(key):
            return self._remove_files(key, replica)
        if work is not None and work.leader_epoch == stored.state.leader_epoch:
            return self._reopen(key, replica, partition, work, stored.state.leader)
        self._apply(key, replica, partition, stored)
        return None

    async def _carry_out(
        self, key: Key, replica: Replica, work: Coroutine[None, None, None]
    ) -> None:
        try:
            async with self._limit:
                await work
        except (CorruptionError, StorageError) as error:
            log.error("%s is offline: %s", replica.name, error)  # noqa: TRY400
            self._take_offline(key, replica, is_damaged=isinstance(error, CorruptionError))
            if isinstance(error, ExhaustedError):
                self.exhausted()
        finally:
            replica.is_busy = False
        self._mark([key])

    # -- roles -----------------------------------------------------------------------------------

    def _apply(self, key: Key, replica: Replica, partition: Partition, stored: StoredState) -> None:
        """Take the role that a state gives this broker; an older state changes nothing."""
        state, led = stored.state, self._led.get(key)
        if state.leader_epoch < replica.leader_epoch:
            return
        if state.leader_epoch > replica.leader_epoch:
            self._end_role(key, replica)
            replica.leader_epoch = state.leader_epoch
            if state.leader == self._identity.node_id:
                self._lead(key, replica, partition, stored)
            else:
                partition.follow(state.leader_epoch)
        if led is not None and led is self._led.get(key):
            self._isr.adopt(led, stored)
        elif self._led.get(key) is None and state.leader != NO_LEADER and not replica.is_offline:
            self._follow(key, partition, state)

    def _lead(self, key: Key, replica: Replica, partition: Partition, stored: StoredState) -> None:
        """Begin to lead, if this life of the broker was elected."""
        state = stored.state
        if state.leader_life != self._identity.incarnation:
            partition.follow(state.leader_epoch)  # nobody, until the controller has elected again
            return
        begun = leadership(state, partition.log, self._min_isr(TopicId(key[0])))
        now = Instant(asyncio.get_running_loop().time())
        progress = LeaderProgress(begun, all_replicas=self._all_replicas, now=now)
        partition.lead(progress)
        log.info(
            "%s: leading from offset %d on, in leader epoch %d",
            replica.name,
            begun.epoch_start,
            state.leader_epoch,
        )
        self._led.lead(Led(key, partition, progress, stored.version))
        self.led_here(replica.name)

    def resign(self, led: Led) -> None:
        """Serve no reader of a partition any more; writers go on until another broker leads it."""
        replica = self._replicas[led.key]
        if replica.name.topic in INTERNAL_TOPICS:  # whose coordinator answers readers
            self._end_role(led.key, replica)
            led.partition.follow(led.progress.leader_epoch)
        else:
            led.progress.resign()
            led.partition.advance(led.progress.high_watermark)

    def _follow(self, key: Key, partition: Partition, state: PartitionState) -> None:
        """Fetch from the leader, unless that is done already."""
        leader = state.leader
        if leader == self._identity.node_id or self._following.get(key) == leader:
            return
        self._following[key] = leader
        known = self._fetchers.get(leader)
        if known is None:
            fetcher = Fetcher(leader, self._leaders.connection, self, self._time_slices)
            task = asyncio.get_running_loop().create_task(fetcher.run())
            task.add_done_callback(self._ended)
            known = self._fetchers[leader] = fetcher, task
        known[0].follow(key, partition, state.leader_epoch)

    def _end_role(self, key: Key, replica: Replica) -> None:
        """Neither lead nor follow, as the first step of any change."""
        if self._led.get(key) is not None:
            self._led.resign(key)
            self.resigned(replica.name)
        self._unfollow(key)

    def _unfollow(self, key: Key) -> None:
        leader = self._following.pop(key, None)
        if leader is None:
            return
        known = self._fetchers.get(leader)
        if known is None:
            return  # it gave up a failed partition, and ended with the last of the others
        fetcher, task = known
        fetcher.forget(key)
        if not len(fetcher):
            del self._fetchers[leader]
            task.cancel()
            self._tasks.add(task)

    # -- called by the streams -------------------------------------------------------------------

    def truncate(self, key: Key, leader_epoch: LeaderEpoch, offset: Offset) -> None:
        """Cut a log at the fork, then follow on."""
        self._plan(key, Work(leader_epoch, offset))

    def begin_anew(self, key: Key, leader_epoch: LeaderEpoch) -> None:
        """Begin where the leader's log begins, then follow on."""
        self._plan(key, Work(leader_epoch, None))

    def _plan(self, key: Key, work: Work) -> None:
        replica = self._replicas[key]
        self._following.pop(key, None)
        replica.work = work
        self._mark([key])

    def begin_at(self, partition: Partition, log_start: Offset) -> None:
        """Raise a follower's log start to its leader's, as far as it is committed here."""
        self._logs.raise_start(partition, log_start)

    def take_offline(self, key: Key, reason: str) -> None:
        """The logs of this replica and of its leader contradict each other."""
        replica = self._replicas[key]
        log.error("%s is offline: %s", replica.name, reason)
        self._following.pop(key, None)
        replica.is_offline = replica.is_refused = True
        if replica.partition is not None:
            replica.partition.fail(StorageError(f"{replica.name}: {reason}"))

    # -- files -----------------------------------------------------------------------------------

    async def _open(self, key: Key, replica: Replica, leader_epoch: LeaderEpoch) -> None:
        """Open a replica; one that cannot be opened is offline, and repaired if others go on."""
        newest = await self._logs.newer_epoch(replica.name, leader_epoch)
        if newest is not None:
            await self._isr.wait_for_operator(key, replica.name, newest)
            leader_epoch = LeaderEpoch(newest + 1)
        partition = await self._logs.open_replica(key, replica.name, leader_epoch)
        if partition is None:
            is_damaged = self._logs.is_damaged(replica.name)
            self._take_offline(key, replica, is_damaged=is_damaged)
        else:
            self._opened_anew(key, replica, partition)

    def _opened_anew(self, key: Key, replica: Replica, partition: Partition) -> None:
        """Take the role in force on this partition, whatever was before."""
        replica.close()
        replica.partition, replica.is_offline = partition, False
        replica.leader_epoch = LeaderEpoch(-1)
        partition.failed[:] = [partial(self._failed, key)]

    async def _reopen(
        self, key: Key, replica: Replica, partition: Partition, work: Work, leader: NodeId
    ) -> None:
        """Cut the log, or begin it anew; the role is taken again on the new partition."""
        if work.fork is not None:
            log.warning("%s: cutting the log at %d, the fork", replica.name, work.fork)
            try:
                opened = await self._logs.truncate(replica.name, work.fork, work.leader_epoch)
            except ExhaustedError:
                replica.close()  # its files are as a crash leaves them here: opened, cut again
                raise
            self._opened_anew(key, replica, opened)
        else:
            try:
                begin = await self._leaders.snapshot(leader, key, work.leader_epoch)
            except NotLeaderError as error:
                log.warning("%s: no snapshot from broker %d: %s", replica.name, leader, error)
                await asyncio.sleep(RETRY_S)
                replica.work = work
                return
            stored = self._cluster.partitions.get(PartitionKey(*key))
            if stored is not None and stored.state.leader_epoch == work.leader_epoch:
                # In one epoch a log start only rises: the leader's is still above this log's end.
                log.warning("%s: beginning anew at %d", replica.name, begin.offset)
                partition = await self._logs.begin_anew(replica.name, begin)
            self._opened_anew(key, replica, partition)

    async def _remove_files(self, key: Key, replica: Replica) -> None:
        """Leave a segment with its seal alone, as the metadata say; the role is taken again."""
        self._end_role(key, replica)
        replica.close()
        self._opened_anew(key, replica, await self._logs.remove_files(key, replica.name))

    # -- failed disks ----------------------------------------------------------------------------

    def _failed(self, key: Key, error: Exception) -> None:
        """Files of an open replica have failed, cannot be read, or have no room."""
        if isinstance(error, ExhaustedError):
            self.exhausted()
            return
        replica = self._replicas.get(key)
        partition = None if replica is None else replica.partition
        if replica is None or partition is None or replica.is_offline:
            return
        if partition.failure is None:
            log.error("%s cannot be read: %s", replica.name, error)
        if not isinstance(partition.failure, NotLeaderError):  # else it is opened anew, or removed
            self._take_offline(key, replica, is_damaged=True)

    def _take_offline(self, key: Key, replica: Replica, *, is_damaged: bool) -> None:
        """Repair a replica from now on, as far as others go on without it."""
        was_damaged = replica.is_offline and replica.repair.is_damaged
        # Of files that were open nothing is trusted any more.
        is_damaged = is_damaged or was_damaged or replica.partition is not None
        replica.is_offline, replica.work = True, None
        replica.repair.failed(Instant(asyncio.get_running_loop().time()), is_damaged=is_damaged)
        self._mark([key])

    def _repair(
        self, key: Key, replica: Replica, stored: StoredState
    ) -> Coroutine[None, None, None] | None:
        """Return what is done next for a replica that has failed."""
        if replica.is_refused:
            return None
        if replica.partition is not None:
            self._apply(key, replica, replica.partition, stored)
        node, live = self._identity.node_id, self._cluster.brokers
        match next_step(stored.state, node, live, is_damaged=replica.repair.is_damaged):
            case Step.LEAVE:
                return self._leave(key, replica)
            case Step.OPEN:
                loop = asyncio.get_running_loop()
                if loop.time() >= replica.repair.not_before:
                    return self._replace(key, replica, stored.state)
                loop.call_at(replica.repair.not_before, self._mark, [key])
            case Step.WAIT:
                pass
        return None

    async def _leave(self, key: Key, replica: Replica) -> None:
        """Count no more in the cluster: first, because the replica has nothing when it begins."""
        try:
            if await self._isr.leave(key, self._identity.node_id):
                log.warning("%s: not in sync any more, and not led here", replica.name)
        except StorageError as error:
            log.warning("%s: leaving the in-sync replicas again: %s", replica.name, error)
            await asyncio.sleep(RETRY_S)

    async def _replace(self, key: Key, replica: Replica, state: PartitionState) -> None:
        """Open the files again, or copy the leader's log, if it answers: until then they stay."""
        name = replica.name
        if not replica.repair.is_damaged:
            await self._open(key, replica, state.leader_epoch)
            return
        try:
            begin = await self._leaders.snapshot(state.leader, key, state.leader_epoch)
        except NotLeaderError as error:
            log.warning("%s: no snapshot from broker %d: %s", name, state.leader, error)
            self._take_offline(key, replica, is_damaged=True)
            return
        log.warning("%s: replacing the failed replica from its leader", name)
        replica.close()
        opened = await self._logs.begin_anew(name, begin if begin.offset else None)
        self._opened_anew(key, replica, opened)

    def _begin_removal(self, topic_id: TopicId) -> None:
        """Begin to remove a deleted topic's files, opened in this life or not, if none is busy."""
        deleted = self._cluster.deleted[topic_id]
        if self._removals.is_begun(topic_id) or self._identity.node_id not in deleted.brokers:
            return
        self._removals.hold(topic_id, deleted.name)
        found = {key: each for key, each in self._replicas.items() if key[0] == topic_id}
        if any(each.is_busy for each in found.values()):
            return
        self._removals.begin(topic_id)
        for key, replica in found.items():
            self._end_role(key, replica)
            replica.is_busy = True  # until its files are removed
        self._begin(self._remove(topic_id, deleted.name))

    async def _remove(self, topic_id: TopicId, name: str) -> None:
        """Remove a deleted topic's files, open or not, and store that nothing is left here."""
        await self._removals.remove_files(topic_id)
        for key in [key for key in self._replicas if key[0] == topic_id]:
            self._names.discard(self._replicas.pop(key).name)
        self._mark(key for key in self._cluster.partitions if key not in self._replicas)
        await self._removals.until_done(name, lambda: self.removed(topic_id))

    def _removal_failed(self, error: Exception) -> None:
        """Tell who waits for a new topic of the same name: that may take long now."""
        if isinstance(error, ExhaustedError):
            self.exhausted()
        self._openings.look_again()
