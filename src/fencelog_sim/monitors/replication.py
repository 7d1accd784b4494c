"""What must hold between the replicas of a partition, after every event of a cluster.

The monitor knows what no broker does: what is committed, as the batches below the highest high
watermark that a leader has had. It reads the replicas' files and the partitions' states in the
metadata store, in the order in which the store took them:

- one leader in each epoch; epochs grow; the leader is in sync, and no replica is both in sync and
  eligible;
- leader completeness: the in-sync and the eligible replicas have all that is committed;
- what becomes committed is durable at ``min.insync.replicas`` replicas and at all of these;
- log matching: one offset in one leader epoch is one batch, on every replica; below its high
  watermark each replica has what is committed;
- no replica's high watermark is above what a leader has committed;
- a replica that is cut, and is in sync or eligible, still has all that is committed;
- what is committed is sound as one log (``committed``), and so is its last stable offset;
- a replica that is cut has a recovery point that is not above its end;
- at the end every replica has all that is committed, and knows the same producers.

Replicas of compacted topics are not compared with each other. Of topics with the name of a deleted
one only the states are looked at.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from fencelog.broker.metadata.catalog import TOPIC_PREFIX, Topic
from fencelog.coordination.controller.model import (
    BROKER_PREFIX,
    NO_LEADER,
    PARTITION_PREFIX,
    PartitionState,
    Registration,
)
from fencelog.coordination.streams.model import StreamSegment
from fencelog.errors import CorruptionError, ErrorCode
from fencelog.log.layout import LOG, parse_directory_name
from fencelog.node import Node
from fencelog.ports import MetadataChange
from fencelog.types import Offset, TopicPartition
from fencelog.wire.batch import check_crc
from fencelog_sim.monitors.committed import CommittedLogs
from fencelog_sim.monitors.elections import election_problem
from fencelog_sim.monitors.questions import Differ, Led, Look, Shown
from fencelog_sim.monitors.replica_logs import ReplicaLogs, whole_batches
from fencelog_sim.monitors.replicated_partition import ReplicatedPartition
from fencelog_sim.monitors.stream_model import StreamModel
from fencelog_sim.world.disk import Loss
from fencelog_sim.world.host import BrokerHost, Watcher
from fencelog_sim.world.loop import Process
from fencelog_sim.world.world import World

VIOLATIONS_MAX = 20
READS = frozenset({"Fetch", "ListOffsets", "Metadata", "FindCoordinator"})
"""What a broker may answer only while nobody else can lead."""


class ReplicationMonitor:
    """Observes one world with several brokers."""

    def __init__(
        self,
        world: World,
        led: Led,
        min_isr: Callable[[Topic], int] = lambda _: 1,
        shown: Shown = lambda node, name: None,
        differ: Differ = lambda leader, replicas, name: (),
        look: Look = lambda number, node: (),
    ) -> None:
        """Watch a world from its first event on; the functions ask its brokers."""
        self._world = world
        self._led = led
        self._min_isr = min_isr
        self._shown = shown
        self._differ = differ
        self._look = look
        self._logs = ReplicaLogs()
        self._committed = CommittedLogs()
        self._streams = StreamModel(self._seal_problem, self._removal_problem)
        self._topics: dict[str, Topic] = {}
        self._deleted: set[str] = set()
        """Topics whose names another topic may have later: files are named after them."""
        self._partitions: dict[str, ReplicatedPartition] = {}
        self._by_name: dict[TopicPartition, ReplicatedPartition] = {}
        self._nodes: dict[int, Node] = {}
        """The broker of each host, from before its start."""
        self._moved: dict[tuple[int, TopicPartition], int] = {}
        self._holed: set[int] = set()
        """Hosts whose disks have lost what was in the middle: that is damage when a log is read."""
        self._unregistered: set[int] = set()
        """Hosts that lost power in ``os`` mode; a leader takes them in until they register anew."""
        self._offline: set[tuple[int, TopicPartition]] = set()
        """Replicas that were reported as offline."""
        self._cut: dict[tuple[int, TopicPartition], bool] = {}
        """Replicas whose files have become less in this step; whether one has become shorter."""
        self.violations: list[str] = []
        self.batches = self.states = 0
        """How many were looked at."""
        world.store.committed = self._store_changed
        world.loop.after_event = self.after_event
        for host in world.hosts:
            host.watcher = _HostWatcher(self, host)

    def after_event(self, process: Process) -> None:
        """A step of a process has ended: look at what it moved."""
        for host in self._world.hosts:
            node = self._nodes.get(host.number) if host.broker is process else None
            if node is not None:
                self._check_node(host, node)
        if self._cut:
            cut, self._cut = self._cut, {}
            for (number, name), is_shorter in sorted(cut.items()):
                self._check_cut(
                    self._world.hosts[number - 1], self._by_name[name], is_shorter=is_shorter
                )
        if self._moved:
            moved, self._moved = self._moved, {}
            for (number, name), high_watermark in moved.items():
                partition = self._by_name.get(name)
                if partition is not None:
                    self._watermark(self._world.hosts[number - 1], partition, high_watermark)

    def _check_node(self, host: BrokerHost, node: Node) -> None:
        for problem in self._look(host.number, node):
            self._add(f"broker {host.number}: {problem}")
        if node.logs.offline():
            self._check_offline(host, node)

    def _check_offline(self, host: BrokerHost, node: Node) -> None:
        """No replica is taken for damaged that nothing has damaged (D3)."""
        for name, error in node.logs.offline().items():
            partition, at = self._by_name.get(name), (host.number, name)
            if partition is None or at in self._offline or host.number in self._holed:
                continue
            self._offline.add(at)
            if isinstance(error, CorruptionError):
                self._report(partition, f"broker {host.number} has it offline: {error}")

    @property
    def counts(self) -> dict[str, int]:
        """How much was looked at."""
        return {
            "states of partitions observed": self.states,
            "batches observed": self.batches,
            "batches committed": sum(len(each.committed) for each in self._partitions.values()),
            "segments opened by resizes": self._streams.resizes,
            "segments without files": self._streams.removals,
        }

    def is_complete(self) -> bool:
        """Whether every replica has all that is committed."""
        return all(
            self._difference(partition, host, 0, partition.end) is None
            for partition in self._by_name.values()
            for host in self._replicas(partition)
        )

    def finish(self) -> None:
        """All brokers run and have caught up: report the replicas that lack something."""
        for partition in self._by_name.values():
            for host in self._replicas(partition):
                self._complete(partition, host, "at the end")
            self._check_producers(partition)

    # -- what the store says -------------------------------------------------------------------

    def _store_changed(self, changes: Sequence[MetadataChange]) -> None:
        for problem in self._streams.take(changes):
            self._add(problem)
        for change in changes:
            if change.key.startswith(BROKER_PREFIX) and change.value is not None:
                registered = Registration.decode(change.key, change.value)
                if registered.begun_at == 0:
                    self._unregistered.discard(registered.node_id)
            if change.key.startswith(TOPIC_PREFIX):
                self._topic_changed(change)
        for change in changes:
            if change.key.startswith(PARTITION_PREFIX):
                self._state_changed(change)

    def _topic_changed(self, change: MetadataChange) -> None:
        name = change.key.removeprefix(TOPIC_PREFIX)
        if change.value is None:
            self._topics.pop(name, None)
            self._deleted.add(name)
            self._committed.deleted(name)
            self._by_name = {k: each for k, each in self._by_name.items() if k.topic != name}
            left = self._partitions.items()
            self._partitions = {k: each for k, each in left if each.name.topic != name}
            return
        topic = self._topics[name] = Topic.decode(name, change.value)
        for each in self._by_name.values():
            if each.name.topic == name:
                each.min_isr = self._min_isr(topic)

    def _state_changed(self, change: MetadataChange) -> None:
        if change.value is None:
            self._partitions.pop(change.key, None)
            return
        state = PartitionState.decode(change.key, change.value)
        self.states += 1
        partition = self._partitions.get(change.key)
        if partition is None:
            partition = self._new_partition(change.key)
            if partition is None:
                return
        before, partition.state = partition.state, state
        self._check_state(partition, before, state)
        if before is None or before.leader_epoch < state.leader_epoch:
            partition.begun_at = partition.end
        members = {*state.isr, *state.eligible}
        partition.forgetful |= self._unregistered - {state.leader}
        partition.forgetful &= members
        for host in self._hosts(sorted(members - partition.forgetful)):
            what = "leads" if host.number == state.leader else "is in sync or eligible"
            self._complete(partition, host, f"{what} in epoch {state.leader_epoch}")

    def _new_partition(self, key: str) -> ReplicatedPartition | None:
        topic_id, _, index = key.removeprefix(PARTITION_PREFIX).partition("/")
        topics = [each for each in self._topics.values() if each.topic_id.hex() == topic_id]
        if not topics:
            return None  # a topic that is deleted already
        (topic,) = topics
        policy = topic.settings.get("cleanup.policy", "")
        partition = self._partitions[key] = ReplicatedPartition(
            TopicPartition(topic.name, int(index)),
            is_compacted=topic.internal or "compact" in policy,
            is_unnamed=topic.name in self._deleted,
            min_isr=self._min_isr(topic),
        )
        self._by_name[partition.name] = partition
        return partition

    def _check_state(
        self, partition: ReplicatedPartition, before: PartitionState | None, state: PartitionState
    ) -> None:
        is_sound = (
            state.leader in {NO_LEADER, *state.isr}
            and not {*state.isr} & {*state.eligible}
            and {*state.isr, *state.eligible} <= {*state.replicas}
        )
        if not is_sound:
            self._report(partition, f"an impossible state: {state}")
        leader = (int(state.leader), state.leader_life)
        if before is not None:
            changes = leader != (before.leader, before.leader_life)
            grown = state.leader_epoch - before.leader_epoch
            if changes and (before.isr or before.eligible):
                problem = election_problem(self._world.store, before, state)
                if problem is not None:
                    self._report(partition, problem)
            # A leader that has resigned leads on in another epoch where no heir is left.
            is_again = grown > 0 and self._world.store.writer == state.leader
            if grown < 0 or (changes != (grown > 0) and not is_again):
                self._report(partition, f"the leader epoch of {before} and of {state}")
        if partition.leaders.setdefault(state.leader_epoch, leader) != leader:
            known = partition.leaders[state.leader_epoch]
            self._report(partition, f"two leaders in epoch {state.leader_epoch}: {known}, {leader}")

    # -- what the brokers answer ---------------------------------------------------------------

    def answered(self, host: BrokerHost, request: str) -> None:
        """A broker is about to answer; readers trust in that nobody else leads by then (F8)."""
        node = self._nodes.get(host.number)
        if node is None or request not in READS:
            return
        if f"{BROKER_PREFIX}{host.number}" in self._world.store.run_out:
            self._add(f"broker {host.number} answers {request}, its lease is over")
        for partition in self._by_name.values():
            replica = node.broker.logs.replica(partition.name)
            if replica is None or not replica.leads or replica.read_error is not ErrorCode.NONE:
                continue
            shown = replica.log.high_watermark
            if shown < partition.begun_at and self._led(node, partition.name) is not None:
                self._report(
                    partition,
                    f"broker {host.number} shows {shown}, committed was all below"
                    f" {partition.begun_at} before its epoch",
                )

    # -- what the replicas have ----------------------------------------------------------------

    def booting(self, host: BrokerHost, node: Node) -> None:
        """A host's next broker is about to start."""
        self._nodes[host.number] = node

    def wrote(self, host: BrokerHost, path: str, data: bytes) -> None:
        """A host has appended bytes to a file."""
        folder, _, file = path.partition("/")
        name = parse_directory_name(folder)
        partition = None if name is None else self._by_name.get(name)
        if partition is None or partition.is_unnamed or not file.endswith(LOG):
            return
        start = 0
        for batch, end in whole_batches(data):
            self.batches += 1
            if not check_crc(memoryview(data)[start:end]):
                self._report(partition, f"broker {host.number}: the checksum of {batch} (D3)")
            start = end
            at = (batch.base_offset, batch.leader_epoch)
            if partition.is_compacted:
                continue  # a new replica gets what compaction has left of them
            if partition.seen.setdefault(at, batch.crc) != batch.crc:
                self._report(
                    partition, f"broker {host.number}: another batch in this epoch: {batch}"
                )

    def shortened(self, host: BrokerHost, path: str, *, is_there: bool = False) -> None:
        """A host has removed or truncated a file: what is there is compared anew."""
        name = parse_directory_name(path.partition("/")[0])
        if name in self._by_name:
            self._by_name[name].compared.pop(host.number, None)
            is_shorter = is_there and path.endswith(LOG)
            self._cut[host.number, name] = self._cut.get((host.number, name), False) or is_shorter

    def _check_cut(
        self, host: BrokerHost, partition: ReplicatedPartition, *, is_shorter: bool
    ) -> None:
        if is_shorter and (problem := self._logs.point_problem(host, partition.name)):
            self._report(partition, f"broker {host.number}: {problem}")
        state = partition.state
        if state is None or host.number in partition.forgetful:
            return
        if host.number in {*state.isr, *state.eligible}:
            self._complete(partition, host, "was cut")

    def moved(self, host: BrokerHost, name: TopicPartition, high_watermark: Offset) -> None:
        """A replica has another high watermark."""
        self._moved[host.number, name] = high_watermark

    def asked(self, group: str, offsets: Mapping[TopicPartition, Offset]) -> None:
        """A client has asked a broker to commit these offsets."""
        for partition, offset in offsets.items():
            self._committed.coordinators.shared.asked[group, partition, offset] += 1

    def ended(self, host: BrokerHost, loss: Loss | None) -> None:
        """A host's process has ended, and what is on its disk may be less."""
        self._nodes.pop(host.number, None)
        for partition in self._by_name.values():
            partition.compared.pop(host.number, None)
        for moved in [each for each in self._moved if each[0] == host.number]:
            del self._moved[moved]
        if loss is Loss.HOLES:
            self._holed.add(host.number)
        if loss not in {None, Loss.NONE} and self._world.setting.durability == "os":
            self._unregistered.add(host.number)
            for partition in self._partitions.values():
                partition.forgetful.add(host.number)

    def _watermark(
        self, host: BrokerHost, partition: ReplicatedPartition, high_watermark: int
    ) -> None:
        node = self._nodes.get(host.number)
        epoch = None if node is None else self._led(node, partition.name)
        if epoch is not None:
            known = partition.leaders.get(epoch)
            if known is None or known[0] != host.number:
                self._report(partition, f"broker {host.number} leads in epoch {epoch} of {known}")
            if node is not None and not partition.is_unnamed:
                self._commit(host, partition, high_watermark)
                self._check_stable(node, partition)
        if partition.is_unnamed:
            return
        if high_watermark > partition.end:
            self._report(
                partition,
                f"broker {host.number} has high watermark {high_watermark},"
                f" committed is all below {partition.end}",
            )
        self._complete(partition, host, "has it below its high watermark", high_watermark)

    def _commit(
        self, host: BrokerHost, partition: ReplicatedPartition, high_watermark: int
    ) -> None:
        """What a leader has below its high watermark is committed from now on."""
        end = partition.end
        own = self._logs.batches(host, str(partition.name), since=end)
        new = [each for each in own if each.next_offset <= high_watermark]
        state = partition.state
        if not new or state is None:
            return
        partition.committed += new
        contents = self._logs.contents(host, str(partition.name), since=end)[: len(new)]
        for problem in self._committed.take(partition.name, contents):
            self._report(partition, problem)
        is_synced = self._world.setting.durability == "fsync"
        holders = set()
        for each in self._hosts(state.replicas):
            has = self._logs.batches(each, str(partition.name), since=end, synced=is_synced)
            if {*new} <= {*has}:
                holders.add(each.number)
        last = new[-1]
        # Who has lost power may have acknowledged it before: that was on its way.
        acknowledged = holders | (partition.forgetful & {*state.isr})
        if len(acknowledged) < min(partition.min_isr, len(state.replicas)):
            self._report(
                partition, f"committed at {sorted(holders)}, min.insync.replicas ignored: {last}"
            )
        missing = {*state.isr, *state.eligible} - partition.forgetful - holders
        if missing:
            self._report(partition, f"committed, and not durable at {sorted(missing)}: {last}")

    def _check_stable(self, node: Node, partition: ReplicatedPartition) -> None:
        """A leader that knows all that is committed shows as much (E10, R2)."""
        offsets = self._shown(node, partition.name)
        if offsets is None or offsets.high_watermark != partition.end:
            return
        for problem in self._committed.shown_problems(partition.name, offsets):
            self._report(partition, problem)

    def _check_producers(self, partition: ReplicatedPartition) -> None:
        state = partition.state
        is_other = partition.is_compacted or partition.is_unnamed or partition.is_removed
        if is_other or state is None or state.leader not in self._nodes:
            return
        replicas = [self._nodes[each] for each in state.replicas if each in self._nodes]
        for problem in self._differ(self._nodes[state.leader], replicas, partition.name):
            self._report(partition, problem)

    def _seal_problem(self, name: TopicPartition, offset: int) -> str | None:
        """Return why a partition has no committed seal at an offset, None if it has."""
        found = self._committed.sealed_at(name)
        return None if found == offset else f"the committed seal is at {found}"

    def _removal_problem(self, name: TopicPartition, segment: StreamSegment) -> str | None:
        """Return why a segment's files may not go; its replicas have none from now on."""
        partition, removed = self._by_name.get(name), segment.removed
        if partition is None or removed is None:
            return "its partition is not known"
        partition.is_removed = True
        return None if partition.end == removed.offset else f"it is committed up to {partition.end}"

    def _complete(
        self, partition: ReplicatedPartition, host: BrokerHost, why: str, upto: int | None = None
    ) -> None:
        """Check that a replica has what is committed, from the start of its log on."""
        end = partition.end if upto is None else min(upto, partition.end)
        begin = partition.compared.get(host.number, 0) if upto is not None else 0
        different = self._difference(partition, host, begin, end)
        if different is not None:
            self._report(partition, f"broker {host.number} {why}: {different}")
        elif upto is not None:
            partition.compared[host.number] = end

    def _difference(
        self, partition: ReplicatedPartition, host: BrokerHost, begin: int, end: int
    ) -> str | None:
        """Say where a replica differs from what is committed in this range of offsets."""
        if partition.is_compacted or partition.is_unnamed or not partition.committed:
            return None
        if partition.is_removed and not self._logs.has_files(host, str(partition.name)):
            return None
        return self._logs.difference(host, str(partition.name), partition.committed, begin, end)

    def _replicas(self, partition: ReplicatedPartition) -> list[BrokerHost]:
        return [] if partition.state is None else self._hosts(partition.state.replicas)

    def _hosts(self, numbers: Iterable[int]) -> list[BrokerHost]:
        return [self._world.hosts[number - 1] for number in numbers]

    def _report(self, partition: ReplicatedPartition, problem: str) -> None:
        self._add(f"{partition.name}: {problem}")

    def _add(self, violation: str) -> None:
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(f"{violation} [at {self._world.loop.time():.6f} s]")


class _HostWatcher(Watcher):
    """Looks on at one host."""

    def __init__(self, monitor: ReplicationMonitor, host: BrokerHost) -> None:
        self._monitor = monitor
        self._host = host

    def booting(self, node: Node) -> None:
        """Another process begins; the disk is another view of what is stored."""
        monitor, host = self._monitor, self._host
        monitor.booting(host, node)
        host.disk.wrote = lambda path, _, data: monitor.wrote(host, path, data)
        disk = host.disk
        disk.removed = disk.renamed = lambda path: monitor.shortened(host, path)
        disk.truncated = lambda path: monitor.shortened(host, path, is_there=True)

    def high_watermark_moved(self, partition: TopicPartition, high_watermark: Offset) -> None:
        """It is looked at after the step."""
        self._monitor.moved(self._host, partition, high_watermark)

    def offsets_committed(self, group: str, offsets: Mapping[TopicPartition, Offset]) -> None:
        """A client has asked for these."""
        self._monitor.asked(group, offsets)

    def crashed(self, loss: Loss | None) -> None:
        """The process has ended."""
        self._monitor.ended(self._host, loss)
