"""Three replicas of one partition that decide by the rules, and nothing else: no broker, no disk.

Messages between them are kept in a bag: each is delivered at any later time, twice, or never.
Replicas crash and lose what is not durable, machines lose power, registrations end at any time,
and each write of the ISR is stored before or after its writer hears of it. ``Model.step`` does one
of these things, chosen by a seeded generator, and then checks what must always be true.
"""

import random
from collections.abc import Callable

from fencelog.coordination.controller.model import NO_LEADER, PartitionState, Registration
from fencelog.coordination.controller.rules import (
    LiveBroker,
    StoredPartition,
    isr_changed,
    isr_size_needed,
    settled,
    without,
)
from fencelog.errors import ErrorCode
from fencelog.replication import follower
from fencelog.replication.follower import Append, LocalEnd, PartitionAnswer, Refuse, Truncate
from fencelog.replication.leader import LeaderProgress, Leadership
from fencelog.replication.session import Position
from fencelog.types import Instant, LeaderEpoch, NodeId, Offset
from tests.unit.replication.replica import (
    LAG_S,
    MIN_ISR,
    NODES,
    START,
    Answer,
    Entry,
    Mistakes,
    Proposal,
    Replica,
    Request,
    ViolationError,
)


class Model:
    """All replicas, the messages on their way and the metadata store."""

    def __init__(self, seed: int, mistakes: Mistakes) -> None:
        self.random = random.Random(seed)
        self.mistakes = mistakes
        self.now = Instant(0.0)
        self.replicas = {node: Replica(node) for node in NODES}
        self.bag: list[Request | Answer] = []
        self.revision = 0
        self.values = 0
        self.brokers: dict[NodeId, LiveBroker] = {}
        self.writes: list[Proposal] = []
        """Writes of the ISR on their way to the store, also those of writers that are dead."""
        self.state = PartitionState(NODES, NO_LEADER, LeaderEpoch(0), NODES)
        self.version = 0
        self.committed: list[Entry] = []
        self.shown = 0
        """The highest high watermark that any consumer has been shown."""
        self.epochs_begun: dict[LeaderEpoch, tuple[NodeId, str]] = {}
        weights: dict[Callable[[], None], float] = {
            self._produce: 6,
            self._flush: 16,
            self._request: 24,
            self._deliver: 44,
            self._lose: 1,
            self._apply: 8,
            self._propose: 4,
            self._store: 4,
            self._hear: 4,
            self._crash: 0.6,
            self._restart: 3,
            self._expire: 1.2,
            self._control: 4,
            self._move: 1,
            self._checkpoint: 1,
            self._wait: 1,
        }
        self._actions, self._weights = list(weights), list(weights.values())
        for node in NODES:
            self._start(self.replicas[node])
            self._register(self.replicas[node])
        self._control()

    # -- one step --------------------------------------------------------------------------------

    def step(self) -> None:
        action = self.random.choices(self._actions, self._weights)[0]
        action()
        self.check()

    def _any(self) -> Replica:
        return self.replicas[self.random.choice(NODES)]

    def _leaders(self) -> list[Replica]:
        return [r for r in self.replicas.values() if r.progress is not None]

    def _leader(self) -> Replica | None:
        leaders = self._leaders()
        return self.random.choice(leaders) if leaders else None

    def _wait(self) -> None:
        self.now = Instant(self.now + self.random.choice([1.0, LAG_S]))

    def _produce(self) -> None:
        leader = self._leader()
        if leader is not None:
            self.values += 1
            leader.entries.append(Entry(leader.epoch, self.values))

    def _flush(self) -> None:
        self._flush_one(self._any())

    def _flush_one(self, replica: Replica) -> None:
        if replica.incarnation is None:
            return
        replica.durable = len(replica.entries)
        if replica.progress is not None:
            self._moved(replica, replica.progress.flushed(Offset(replica.durable)))

    def _checkpoint(self) -> None:
        replica = self._any()
        replica.stored_high_watermark = replica.high_watermark

    # -- messages --------------------------------------------------------------------------------

    def _request(self) -> None:
        self._request_of(self._any())

    def _request_of(self, replica: Replica) -> None:
        if replica.incarnation is None or replica.progress is not None or replica.is_offline:
            return
        if replica.leader in (NO_LEADER, replica.node):
            return
        durable = replica.durable
        if self.mistakes.acknowledges_written:
            durable = len(replica.entries)
        position = Position(
            replica.epoch, Offset(len(replica.entries)), replica.last_epoch, Offset(durable), START
        )
        self.bag.append(Request(replica.node, replica.incarnation, replica.leader, position))

    def _lose(self) -> None:
        if self.bag:
            self.bag.pop(self.random.randrange(len(self.bag)))

    def _deliver(self) -> None:
        if not self.bag:
            return
        place = self.random.randrange(len(self.bag))
        message = self.bag[place]
        if self.random.random() < 0.9:
            self.bag.pop(place)
        if isinstance(message, Request):
            self._serve(message)
        else:
            self._take(message)

    def _serve(self, request: Request) -> None:
        leader, position = self.replicas[request.leader], request.position
        progress = leader.progress
        if progress is None:
            return
        if position.leader_epoch != leader.epoch and not self.mistakes.ignores_epochs:
            return
        log_end = Offset(len(leader.entries))
        diverging = None
        if position.last_epoch >= 0:
            mine = leader.end_of_epoch(position.last_epoch)
            if mine is None:
                return
            if follower.differs(position.last_epoch, position.fetch_offset, mine):
                diverging = mine
        entries: tuple[Entry, ...] = ()
        if diverging is None or self.mistakes.never_truncates:
            if leader.heard.get(request.sender) != request.incarnation:
                progress.disconnected(request.sender)
                leader.heard[request.sender] = request.incarnation
            high_watermark = progress.acknowledged(
                request.sender,
                position.fetch_offset,
                position.durable_end,
                self.now,
                log_end=log_end,
                log_start=START,
            )
            self._moved(leader, high_watermark)
            count = self.random.randint(0, 3)
            entries = tuple(leader.entries[position.fetch_offset :][:count])
        answer = PartitionAnswer(
            ErrorCode.NONE,
            leader.epoch,
            position.fetch_offset,
            progress.high_watermark,
            Offset(0),
            None if self.mistakes.never_truncates else diverging,
        )
        self.bag.append(Answer(request.sender, request.incarnation, position, answer, entries))

    def _take(self, message: Answer) -> None:
        replica = self.replicas[message.target]
        if replica.incarnation != message.incarnation or replica.progress is not None:
            return
        if replica.is_offline:
            return
        answer = message.answer
        if self.mistakes.ignores_epochs:
            answer = answer._replace(leader_epoch=replica.epoch)
        local = LocalEnd(
            replica.epoch,
            Offset(0),
            Offset(len(replica.entries)),
            Offset(replica.high_watermark),
            replica.last_epoch,
            replica.end_of_epoch,
        )
        match follower.decide(local, answer):
            case Append(high_watermark):
                if message.entries and message.entries[0].epoch < replica.last_epoch:
                    return  # the log refuses epochs that go back
                replica.entries.extend(message.entries)
                known = min(high_watermark, replica.durable)
                replica.high_watermark = max(replica.high_watermark, known)
            case Truncate(offset):
                replica.truncate(offset)
            case Refuse(reason):
                raise ViolationError(f"{replica.node} refuses to follow: {reason}")
            case _:
                pass

    # -- the metadata store ----------------------------------------------------------------------

    def _write(self, state: PartitionState) -> None:
        if state != self.state:
            self.revision += 1
            self.state, self.version = state, self.revision

    def _control(self) -> None:
        self._write(settled(StoredPartition(self.state, self.version, MIN_ISR), self.brokers))

    def _move(self) -> None:
        """Another live member of the ISR is elected, as when a broker stops or comes back."""
        state = self.state
        live = [n for n in state.isr if n in self.brokers and n != state.leader]
        if live and state.leader != NO_LEADER:
            leader = self.random.choice(live)
            life = self.brokers[leader].registration.incarnation
            epoch = LeaderEpoch(state.leader_epoch + 1)
            self._write(state._replace(leader=leader, leader_epoch=epoch, leader_life=life))

    def _expire(self) -> None:
        """A registration ends: its process is gone, or the store has not heard of it."""
        gone = [n for n in self.brokers if self.replicas[n].incarnation is None]
        node = self.random.choice(gone or list(NODES))
        if gone or self.random.random() < 0.2:
            self.brokers.pop(node, None)

    def _start(self, replica: Replica) -> None:
        replica.incarnation = f"{replica.node}-{self.random.random()}"

    def _register(self, replica: Replica) -> None:
        assert replica.incarnation is not None
        self.revision += 1
        registration = Registration(replica.node, "host", 1, replica.incarnation, "")
        self.brokers[replica.node] = LiveBroker(registration, self.revision)

    def _crash(self) -> None:
        replica = self._any()
        if replica.incarnation is None:
            return
        replica.incarnation, replica.progress, replica.proposal = None, None, None
        replica.leader, replica.heard = NO_LEADER, {}
        del replica.entries[replica.durable :]
        replica.high_watermark = min(replica.stored_high_watermark, len(replica.entries))
        if self.random.random() < 0.3 and not any(
            each.lost_power for each in self.replicas.values()
        ):
            replica.lost_power = True
            replica.truncate(self.random.randint(0, len(replica.entries)))

    def _restart(self) -> None:
        self._restart_one(self._any())

    def _restart_one(self, replica: Replica) -> None:
        """A broker starts, or its session has ended and it begins a new life."""
        registered = self.brokers.get(replica.node)
        if replica.incarnation is None:
            if replica.lost_power:
                # Its old registration first: no leader may take its word for that of the new life.
                self.brokers.pop(replica.node, None)
                self._write(without(self.state, replica.node))
                replica.lost_power = False
            self._start(replica)
            self._register(replica)
        elif registered is None:
            replica.progress = replica.proposal = None
            replica.leader, replica.heard = NO_LEADER, {}
            self._start(replica)
            self._register(replica)

    def _apply(self) -> None:
        self._apply_one(self._any())

    def _apply_one(self, replica: Replica) -> None:
        """A broker hears of the newest state."""
        state = self.state
        if replica.incarnation is None or replica.is_offline:
            return
        if state.leader_epoch > replica.epoch or replica.leader == NO_LEADER:
            replica.epoch, replica.leader = state.leader_epoch, state.leader
            replica.progress, replica.proposal, replica.heard = None, None, {}
            if state.leader == replica.node and state.leader_life == replica.incarnation:
                self._lead(replica)
            elif self.mistakes.truncates_to_high_watermark:
                replica.truncate(replica.high_watermark)
        elif replica.progress is not None and replica.proposal is None:
            self._settle(replica)

    def _lead(self, replica: Replica) -> None:
        state = self.state
        owner = self.epochs_begun.setdefault(
            state.leader_epoch, (replica.node, replica.incarnation or "")
        )
        if owner != (replica.node, replica.incarnation):
            raise ViolationError(f"two leaders of epoch {state.leader_epoch}")
        replica.progress = LeaderProgress(
            Leadership(
                replica.node,
                state.replicas,
                state.isr,
                state.leader_epoch,
                Offset(len(replica.entries)),
                Offset(replica.high_watermark),
                isr_size_needed(state, MIN_ISR),
            ),
            all_replicas=False,
            now=self.now,
        )
        self._moved(replica, replica.progress.flushed(Offset(replica.durable)))

    def _settle(self, leader: Replica) -> None:
        assert leader.progress is not None
        state = self.state
        if state.leader_epoch == leader.epoch:
            self._moved(leader, leader.progress.require(isr_size_needed(state, MIN_ISR)))
            self._moved(leader, leader.progress.settled(state.isr))

    def _propose(self) -> None:
        leader = self._leader()
        if leader is None or leader.proposal is not None or leader.progress is None:
            return
        state, version = self.state, self.version
        if state.leader_epoch != leader.epoch or set(state.isr) != set(leader.progress.isr):
            return  # it has to hear of the newest state first
        isr = leader.progress.isr_change(
            self.now, LAG_S, log_end=Offset(len(leader.entries)), log_start=START
        )
        if isr is None:
            return
        registrations = {}
        for node in {leader.node, *isr} - (set(state.isr) - {leader.node}):
            broker = self.brokers.get(node)
            if broker is None:
                return
            life = leader.incarnation if node == leader.node else leader.heard.get(node)
            is_same = broker.registration.incarnation == life
            if not (is_same or self.mistakes.joins_with_any_registration):
                return
            registrations[node] = broker.version
        leader.proposal = Proposal(isr_changed(state, isr, MIN_ISR), version, registrations)
        self.writes.append(leader.proposal)
        if self.mistakes.proposal_counts_at_once:
            leader.progress.settled(isr)
        else:
            leader.progress.proposed(isr)

    def _store(self) -> None:
        """A proposal reaches the store, also one whose writer is dead or deposed since."""
        if not self.writes:
            return
        proposal = self.writes.pop(self.random.randrange(len(self.writes)))
        proposal.is_known = True
        same = all(
            node in self.brokers and self.brokers[node].version == version
            for node, version in proposal.registrations.items()
        )
        if same and proposal.version == self.version:
            self._write(proposal.state)

    def _hear(self) -> None:
        """The writer hears of the outcome, or reads it."""
        for replica in self.replicas.values():
            if replica.proposal is not None and replica.proposal.is_known:
                replica.proposal = None
                if replica.progress is not None:
                    self._settle(replica)
                return

    def heal(self) -> None:
        """Everybody is up and hears of everything: in the end all logs are the same."""
        self.bag.clear()
        for _ in range(40):
            while self.writes:
                self._store()
            self._hear()
            self._control()
            self.now = Instant(self.now + 1)
            for replica in self.replicas.values():
                self._restart_one(replica)
                self._apply_one(replica)
                self._flush_one(replica)
                self._request_of(replica)
            while self.bag:
                self._deliver()
            self._propose()
            self.check()
        if not self.state.isr and not self.state.eligible:
            return  # nobody is known to have everything: it waits for its operator
        logs = [replica.entries for replica in self.replicas.values()]
        if not logs[0] == logs[1] == logs[2] == self.committed or len(self.state.isr) < len(NODES):
            raise ViolationError("the replicas do not catch up")

    # -- what must always be true ----------------------------------------------------------------

    def _moved(self, leader: Replica, high_watermark: int) -> None:
        if high_watermark < leader.high_watermark:
            raise ViolationError("the high watermark of a leader goes back")
        if high_watermark > len(leader.entries):
            raise ViolationError("the high watermark is above the leader's log")
        leader.high_watermark = high_watermark
        found = leader.entries[:high_watermark]
        known = self.committed[:high_watermark]
        if found[: len(known)] != known:
            raise ViolationError("a committed record was replaced")
        self.committed.extend(found[len(self.committed) :])
        self.check()

    def check(self) -> None:
        self._check_logs()
        state = self.state
        for node in {*state.isr, *state.eligible}:
            replica = self.replicas[node]
            durable = replica.entries[: replica.durable]
            if durable[: len(self.committed)] != self.committed and not replica.lost_power:
                raise ViolationError(f"{node} may be elected and lacks committed records")
        newest = self.replicas.get(state.leader)
        if newest is None or newest.progress is None or newest.epoch != state.leader_epoch:
            return
        if newest.progress.serves:
            if newest.high_watermark < self.shown:
                raise ViolationError("the high watermark goes back for a consumer")
            self.shown = newest.high_watermark

    def _check_logs(self) -> None:
        """Log matching: logs that have the same record are the same below it."""
        logs = [replica.entries for replica in self.replicas.values()]
        for one in logs:
            epochs = [entry.epoch for entry in one]
            if epochs != sorted(epochs):
                raise ViolationError("leader epochs go back in a log")
        for one, other in ((logs[0], logs[1]), (logs[0], logs[2]), (logs[1], logs[2])):
            shared = [n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a == b]
            if shared and one[: shared[-1]] != other[: shared[-1]]:
                raise ViolationError("two logs have the same record, and differ below it")
