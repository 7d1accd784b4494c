"""Monitors of one run: what must hold after every step of the broker, and after each crash.

They only observe and change nothing: no event, no random draw, no byte. The broker's observer tells
what was touched, so that a step costs a look at that; beside it each step looks at one partition in
turn, which would find what no event told. The oracle at the disk checks every batch.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from fencelog.broker.coordinators.loaded import Loaded
from fencelog.broker.coordinators.runtime import CoordinatorRuntime
from fencelog.broker.partitions.log_manager import LogManager
from fencelog.broker.partitions.log_starts import TO_HIGH_WATERMARK
from fencelog.broker.partitions.partition import Partition
from fencelog.coordination.group.model import JoinAnswer
from fencelog.coordination.group.offsets import Kept
from fencelog.coordination.group.records import CommittedOffset
from fencelog.coordination.shard import LogRecord, partition_for
from fencelog.errors import CorruptionError, ErrorCode
from fencelog.log.values import MarkerToWrite
from fencelog.node import Node
from fencelog.ports import MetadataChange
from fencelog.types import Instant, Offset, ProducerId, TopicPartition
from fencelog_sim.monitors.log_oracle import LogOracles
from fencelog_sim.monitors.observed_log import LogOracle
from fencelog_sim.monitors.removed_files import RemovedFiles
from fencelog_sim.monitors.replays import LogReplay, ShardReplay
from fencelog_sim.monitors.stream_model import StreamModel
from fencelog_sim.monitors.upkeep import RecoveryPoint, Retention, Timers, forgotten
from fencelog_sim.world.disk import Loss
from fencelog_sim.world.host import Watcher
from fencelog_sim.world.loop import Process
from fencelog_sim.world.world import World

REPLAY_EVENTS = 1000
"""Live state is compared with its replay every so many steps of the broker, and at each crash."""
ROUND_EVENTS = 32
"""A round over all partitions begins every so many steps, and goes on by one at each step."""

NO_PARTITION = TopicPartition("producer-ids", 0)
METADATA = TopicPartition("metadata", 0)
Offsets: TypeAlias = tuple[int, int, int, int]
"""Log start, last stable offset, high watermark, end."""
NOT_SEEN: Offsets = (-1, -1, -1, -1)
Runtime: TypeAlias = CoordinatorRuntime[Any]
OffsetResponse: TypeAlias = tuple[int, str, Mapping[TopicPartition, Kept]]
"""The end of the log when somebody asked, the group, its offsets."""


class _Watched:
    """A partition of the running broker, and how it was when it was last looked at."""

    __slots__ = (
        "due",
        "log",
        "oracle",
        "partition",
        "recovery_point",
        "replay",
        "retention",
        "seen",
    )

    def __init__(self, partition: Partition, oracle: LogOracle | None, replay: LogReplay) -> None:
        self.partition = partition
        self.log = partition.log
        self.oracle = oracle
        self.replay = replay
        self.seen: Offsets = NOT_SEEN
        self.due = True
        self.recovery_point = RecoveryPoint()
        self.retention = Retention()

    def offsets(self) -> Offsets:
        log = self.log
        state = log._state
        return state.log_start, log.last_stable_offset, log.high_watermark, state.log_end


class Monitor(Watcher):
    """Observes one world's broker over all of its processes."""

    def __init__(self, world: World) -> None:
        """Watch a world from its first event on."""
        self._world = world
        self._oracles = LogOracles(self._read, self._live_offsets, world.clock.now_ms)
        self._node: Node | None = None
        self._process: Process | None = None
        self._logs: LogManager | None = None
        self._watched: dict[Partition, _Watched] = {}
        self._round: list[_Watched] = []
        self._touched: dict[Partition, None] = {}
        self._shards: dict[tuple[str, int], ShardReplay] = {}
        self._offset_responses: dict[Partition, list[OffsetResponse]] = {}
        """Offset responses that are about to be sent to groups, by the log that has the offsets."""
        self._replays: dict[TopicPartition, LogReplay] = {}
        self._timers = Timers()
        self._ids: set[int] = set()
        """Every producer id that any broker process assigned."""
        self._may_be_damaged = False
        self._events = self._lives = self._recoveries = self._compared = 0
        self._removed = RemovedFiles(lambda: self._logs, self._oracles.of)
        self._streams = StreamModel(self._oracles.seal_problem, self._removed.problem)
        world.host.watcher = self
        world.host.metadata.store.committed = self._metadata_changed
        world.loop.after_event = self.after_event

    @property
    def violations(self) -> list[str]:
        """What broke: where, what was found, what was expected."""
        return self._oracles.violations

    @property
    def counts(self) -> dict[str, int]:
        """How much was looked at."""
        return {
            "broker processes observed": self._lives,
            "broker steps observed": self._events,
            "appends observed": self._oracles.appends,
            "batches observed": self._oracles.batches,
            "recoveries observed": self._recoveries,
            "replays compared": self._compared,
            "files compacted": self._oracles.swaps,
            "takeovers": len(self._oracles.coordinators.grants.takeovers),
            "preemptions": len(self._oracles.coordinators.grants.preemptions),
            "segments opened by resizes": self._streams.resizes,
            "segments without files": self._streams.removals,
        }

    # -- starts and ends of the broker ---------------------------------------------------------

    def booting(self, node: Node) -> None:
        """A node is about to start on the disk as it is."""
        self._node = node
        self._process = self._world.host.broker
        disk = self._world.host.disk
        disk.wrote = self._oracles.wrote
        disk.renamed, disk.removed = self._oracles.renamed, self._oracles.removed
        for path in self._world.host.flipped:
            self._may_be_damaged = True
            damaged = self._oracles.logs.get(path.rpartition("/")[0])
            if damaged is not None:
                damaged.promised = min(damaged.promised, damaged.synced)
        self._logs = node.logs
        self._follow_deletions(node.logs)

    def _follow_deletions(self, logs: LogManager) -> None:
        """Remember up to where clients ask to delete records: the rest is retention's doing."""
        delete_records = logs.delete_records

        async def followed(targets: Mapping[Partition, Offset]) -> dict[Partition, ErrorCode]:
            for partition, offset in targets.items():
                watched = self._watched.get(partition) or self._watch(partition)
                end = partition.log.high_watermark if offset == TO_HIGH_WATERMARK else offset
                watched.retention.asked = max(watched.retention.asked, end)
            return await delete_records(targets)

        logs.delete_records = followed  # type: ignore[method-assign]  # of this instance

    def attach(self, node: Node) -> None:
        """The node begins to serve."""
        assert node is self._node
        self._lives += 1
        self._look_around()
        self._oracles.serving = True
        for name, error in node.logs.offline().items():
            if isinstance(error, CorruptionError) and not self._may_be_damaged:
                self._report(name, f"offline after a start, though nothing damaged it: {error}")

    def crashed(self, loss: Loss | None) -> None:
        """The broker's process has ended; ``loss`` if its host lost power, running or not."""
        if self._node is not None:
            self._look_around(at_the_end=True)
            for watched in self._watched.values():
                self._last_look(watched)
        loses = self._world.setting.durability == "os" and loss not in {None, Loss.NONE}
        # In ``os`` mode recovery truncates a log wherever what was not synced is bad.
        self._may_be_damaged = self._may_be_damaged or (loss is Loss.HOLES and not loses)
        if loses:
            self._oracles.weakened = True
            for log in self._oracles.logs.values():
                log.promised = min(log.promised, log.synced)
        self._oracles.crashed()
        self._node = self._process = self._logs = None
        self._round = []
        self._watched.clear()
        self._touched.clear()
        self._shards.clear()
        self._offset_responses.clear()

    def after_event(self, process: Process) -> None:
        """A step of a process has ended."""
        if process is not self._process:
            return
        self._events += 1
        if self._touched:
            touched, self._touched = self._touched, {}
            for partition in touched:
                self._check(self._watched.get(partition) or self._watch(partition))
        if self._round:
            self._check(self._round.pop())
        elif not self._oracles.serving or self._events % ROUND_EVENTS == 0:
            self._look_around()
        if self._events % REPLAY_EVENTS == 0:
            for watched in self._watched.values():
                watched.due = True
            for shard in self._shards.values():
                shard.due = True

    def _metadata_changed(self, changes: Sequence[MetadataChange]) -> None:
        """A write to the store has taken effect."""
        for problem in self._streams.take(changes):
            self._report(METADATA, problem)

    # -- finding partitions -------------------------------------------------------------------

    def _look_around(self, *, at_the_end: bool = False) -> None:
        """Find what has come to be, look at the coordinators, and begin another round."""
        node = self._node
        if node is None or self._logs is None:
            return
        partitions = self._logs.partitions()
        self._watched = {
            partition: self._watched.get(partition) or self._watch(partition)
            for partition in partitions
        }
        self._round = list(self._watched.values())
        for runtime in node.runtimes():
            for loaded in runtime.loaded():
                self._compare_shard(runtime, loaded, at_the_end=at_the_end)
                problem = self._timers.problem(runtime, loaded, self._world.loop.time())
                if problem is not None:
                    self._report(loaded.partition.name, problem)

    def _watch(self, partition: Partition) -> _Watched:
        """Look at a partition for the first time in this broker process."""
        name = partition.name
        oracle = self._oracles.of(name) if partition.log.has_files else None
        replay = self._replays.setdefault(name, LogReplay())
        watched = self._watched[partition] = _Watched(partition, oracle, replay)
        if problem := self._removed.opened(partition):
            self._report(name, problem)
        if oracle is not None:
            log_start = partition.log.log_start_offset
            if log_start < oracle.log_start:
                self._report(
                    name,
                    f"log start {log_start} after a start, though {oracle.log_start} was seen "
                    "before (D4)",
                )
            if oracle.stale:
                self._recoveries += 1
                if self._oracles.reconcile(oracle) and oracle.end == partition.log.log_end_offset:
                    log = partition.log
                    self._oracles.recall(oracle, lambda: any(replay.compare(oracle, log)))
            high_watermark = partition.log.high_watermark
            if high_watermark < oracle.promised:
                self._report(
                    name,
                    f"high watermark {high_watermark} after a start, though {oracle.promised} "
                    "was promised before (D1)",
                )
        self._check(watched)
        return watched

    def _shard(self, runtime: Runtime, loaded: Loaded[Any]) -> ShardReplay:
        key = runtime.topic, loaded.index
        known = self._shards.get(key)
        if known is None or known.loaded is not loaded:
            known = self._shards[key] = ShardReplay(runtime, loaded)
        return known

    def _shard_at(self, partition: TopicPartition) -> ShardReplay | None:
        """The shard in service whose records are in this partition; None without one."""
        for runtime in self._node.runtimes() if self._node is not None else ():
            for loaded in runtime.loaded():
                if loaded.partition.name == partition:
                    return self._shard(runtime, loaded)
        return None

    # -- observed events ------------------------------------------------------------------------

    def appended(self, partition: TopicPartition, base_offset: Offset, end_offset: Offset) -> None:
        """Look at this partition once the step has ended."""
        self._touch(partition)

    def high_watermark_moved(self, partition: TopicPartition, high_watermark: Offset) -> None:
        """Look at this partition once the step has ended."""
        self._touch(partition)

    def _touch(self, name: TopicPartition) -> None:
        partition = None if self._logs is None else self._logs.get(*name)
        if partition is not None:
            self._touched[partition] = None

    def markers_appended(self, partition: TopicPartition, markers: Sequence[MarkerToWrite]) -> None:
        """The shard of this log, if there is one, has followed them."""
        shard = self._shard_at(partition)
        if shard is not None:
            last = shard.loaded.partition.log.log_end_offset - 1
            shard.pending.extend((last, marker) for marker in markers)

    def decided(
        self, shard: TopicPartition, base_offset: Offset, records: Sequence[LogRecord]
    ) -> None:
        """The shard has replayed this decision."""
        known = self._shard_at(shard)
        assert known is not None, shard
        known.pending.append((base_offset, tuple(records)))

    def answered(self, shard: TopicPartition, end_offset: Offset, response: object) -> None:
        """A response is sent only after what it reveals is committed (E16)."""
        partition = None if self._logs is None else self._logs.get(*shard)
        if partition is None:
            return
        high_watermark = partition.log.high_watermark
        if high_watermark < end_offset:
            self._report(
                shard,
                f"answered at HW {high_watermark}, though the answer reveals what is below "
                f"{end_offset} (E16)",
            )
        self._response_sent(partition, end_offset)
        self._replied(partition, response)

    def producer_id_assigned(self, producer_id: ProducerId) -> None:
        """No id is given twice, nor one that a log knows (E1, E7)."""
        if producer_id in self._ids or producer_id in self._oracles.coordinators.shared.written_by:
            self._report(NO_PARTITION, f"producer id {producer_id} is given again (E1, E7)")
        self._ids.add(producer_id)

    def offsets_committed(self, group: str, offsets: Mapping[TopicPartition, Offset]) -> None:
        """A client has asked for these."""
        for partition, offset in offsets.items():
            self._oracles.coordinators.shared.asked[group, partition, offset] += 1

    def offsets_fetched(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        """Offsets of a group are sent once all that the shard knows is committed."""
        assert self._node is not None
        runtime = self._node.groups
        index = partition_for(group, runtime.partition_count)
        (loaded,) = (each for each in runtime.loaded() if each.index == index)
        known = loaded.shard._offsets.committed(group)
        kept = {name: Kept(offsets[name], known[name].at) for name in offsets}
        log = loaded.partition
        self._offset_responses.setdefault(log, []).append((log.log.log_end_offset, group, kept))

    def _response_sent(self, log: Partition, end: int) -> None:
        """A response that reveals what is below ``end`` is sent: so may the offsets be (E10)."""
        waiting = self._offset_responses.get(log, [])
        self._offset_responses[log] = [each for each in waiting if each[0] > end]
        for at_end, group, offsets in waiting:
            for partition, kept in offsets.items() if at_end <= end else ():
                problem = self._oracles.coordinators.has_shown(
                    log.name, group, partition, kept.at, kept.committed.offset
                )
                if problem is not None:
                    self._report(log.name, problem)

    def _replied(self, log: Partition, response: object) -> None:
        """A member learns only a generation that a crash cannot assign again (E8)."""
        for reply in response if isinstance(response, tuple) else ():
            answer = reply.answer
            if isinstance(answer, JoinAnswer) and answer.error is ErrorCode.NONE:
                stored = self._oracles.coordinators.highest_generation(log.name)
                if answer.generation > stored:
                    self._report(
                        log.name,
                        f"{answer.member_id} learns generation {answer.generation}, though "
                        f"{stored} is the highest that is stored (E8)",
                    )

    # -- checks of state ----------------------------------------------------------------------

    def _check(self, watched: _Watched) -> None:
        now = watched.offsets()
        watched.retention.seen(watched.log._state.config)
        if now != watched.seen:
            self._look(watched, now)
        self._check_upkeep(watched)
        if watched.due:
            self._compare_log(watched, now)

    def _check_upkeep(self, watched: _Watched) -> None:
        """What was appended will be flushed, and what counts as synced is."""
        partition, node, oracle = watched.partition, self._node, self._oracle_of(watched)
        if node is None or oracle is None or not self._is_current(watched):
            return
        point = partition.recovery_point
        for problem in (
            forgotten(node.flusher, partition),
            watched.recovery_point.problem(self._world.host.disk, oracle, point),
        ):
            if problem is not None:
                self._report(partition.name, problem)

    def _check_retention(self, watched: _Watched, oracle: LogOracle, log_start: int) -> None:
        """The log start has gone up."""
        left = sum(segment.size for segment in watched.log._state.segments)
        latest_ms = max(self._oracles.latest_ms, self._world.clock.now_ms())
        for problem in watched.retention.problems(oracle, log_start, latest_ms, left):
            self._report(watched.partition.name, problem)

    def _look(self, watched: _Watched, now: Offsets) -> None:
        """The offsets of a partition have changed."""
        before, watched.seen = watched.seen, now
        log_start, last_stable, high_watermark, end = now
        name = watched.partition.name
        if not 0 <= log_start <= last_stable <= high_watermark <= end:
            self._report(
                name,
                f"log start {log_start} ≤ LSO {last_stable} ≤ HW {high_watermark} ≤ LEO {end} "
                "does not hold",
            )
        for what, old, new in zip(("log start", "LSO", "HW", "LEO"), before, now, strict=True):
            if new < old:
                self._report(name, f"the {what} goes from {old} back to {new}")
        oracle = self._oracle_of(watched)
        if oracle is None or not self._is_current(watched):
            return
        if before != NOT_SEEN and log_start > before[0]:
            self._check_retention(watched, oracle, log_start)
        oracle.log_start = log_start
        if 0 <= oracle.ledger.sealed_at < log_start:
            self._report(name, f"log start {log_start} behind the seal (R2)")
        self._oracles.stands(oracle, high_watermark)
        if high_watermark > oracle.end:
            self._report(name, f"HW {high_watermark}, though the disk has {oracle.end} (D1)")
            return
        expected = oracle.ledger.last_stable_offset(high_watermark, log_start)
        if last_stable != expected and not oracle.knows_less:
            self._report(name, f"the LSO is {last_stable}, expected {expected} (E10)")

    def _last_look(self, watched: _Watched) -> None:
        """The broker ends here."""
        watched.due = True
        self._check(watched)
        oracle = self._oracle_of(watched)
        if oracle is not None:
            oracle.promised = max(oracle.promised, watched.log.high_watermark)
            oracle.synced = max(oracle.synced, watched.partition.recovery_point)

    def _oracle_of(self, watched: _Watched) -> LogOracle | None:
        if watched.oracle is None and watched.log.has_files:
            watched.oracle = self._oracles.of(watched.partition.name)
        return watched.oracle

    def _is_current(self, watched: _Watched) -> bool:
        """Whether the partition was not deleted meanwhile."""
        name = watched.partition.name
        return self._logs is not None and self._logs.get(*name) is watched.partition

    def _compare_log(self, watched: _Watched, now: Offsets) -> None:
        """Compare a partition's state with its replay, once all of it is on disk."""
        oracle = self._oracle_of(watched)
        if oracle is None or oracle.end != now[3] or not self._is_current(watched):
            return
        watched.due = False
        if oracle.knows_less:
            return
        self._compared += 1
        for problem in watched.replay.compare(oracle, watched.log):
            self._report(watched.partition.name, problem)

    def _compare_shard(self, runtime: Runtime, loaded: Loaded[Any], *, at_the_end: bool) -> None:
        """Compare a shard with the replay of its log, once all of it is on disk or at the end."""
        shard = self._shard(runtime, loaded)
        name = loaded.partition.name
        oracle = self._oracles.of(name)
        if oracle is None or not (shard.due or at_the_end):
            return
        if loaded.partition.failure is not None:
            return  # loaded up to the high watermark, and to be dropped (D2)
        if not at_the_end and oracle.end != loaded.partition.log.log_end_offset:
            return
        shard.due = False
        self._compared += 1
        now = Instant(self._world.loop.time())
        problem = shard.compare(oracle, now, to_the_end=at_the_end)
        if problem is not None:
            self._report(name, f"the shard is not its replay: {problem}")

    # -- questions of the oracle ---------------------------------------------------------------

    def _read(self, path: str) -> bytes | None:
        disk = self._world.host.disk
        return disk.contents(path) if disk.exists(path) else None

    def _live_offsets(self, name: TopicPartition) -> tuple[int, int, bool, bool] | None:
        partition = None if self._logs is None else self._logs.get(*name)
        if partition is None:
            return None
        log, store = partition.log, partition._store
        return log.log_start_offset, log.high_watermark, store.is_rebuilt, store.knows_deleted

    def _report(self, name: TopicPartition, problem: str) -> None:
        self._oracles.report(name, f"{problem} [at {self._world.loop.time():.6f} s]")
