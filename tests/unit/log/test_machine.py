"""The log against a plain model: a list of what was stored, searched for every answer."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from fencelog.errors import ErrorCode
from fencelog.log.partition_log import PartitionLog
from fencelog.log.values import Appended, Duplicate, Isolation, Rejected
from fencelog.wire.hot.append_tags import Revision
from tests.support.log import Driver, flush_and_commit, make_batch, marker, state_of

PRODUCERS = st.integers(1, 3)
COUNTS = st.integers(1, 3)


@dataclass
class Entry:
    """A batch or marker that was stored."""

    offset: int
    count: int
    producer_id: int = -1
    epoch: int = -1
    sequence: int = -1
    transaction: "Transaction | None" = None
    is_marker: bool = False


@dataclass
class Transaction:
    producer_id: int
    epoch: int
    first: int
    marker: int | None = None
    committed: bool = False


@dataclass
class Model:
    """Everything is computed from the entries, by looking at all of them."""

    entries: list[Entry] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    dropped_at: dict[int, int] = field(default_factory=dict)
    log_start: int = 0
    end: int = 0
    high_watermark: int = 0
    owners: dict[str | None, tuple[int, bool, int]] = field(default_factory=dict)
    """Epoch of the last grant in each group, whether it is live, and where that is stored."""
    sealed_at: int | None = None

    def known(self, producer_id: int) -> list[Entry]:
        since = self.dropped_at.get(producer_id, -1)
        return [e for e in self.entries if e.producer_id == producer_id and e.offset > since]

    def epoch_of(self, producer_id: int) -> int | None:
        epochs = [e.epoch for e in self.known(producer_id)]
        return max(epochs) if epochs else None

    def batches(self, producer_id: int, epoch: int) -> list[Entry]:
        return [e for e in self.known(producer_id) if not e.is_marker and e.epoch == epoch]

    def open_transaction(self, producer_id: int) -> Transaction | None:
        found = [t for t in self.transactions if t.producer_id == producer_id and t.marker is None]
        assert len(found) <= 1
        return found[0] if found else None

    def next_sequence(self, producer_id: int) -> int:
        epoch = self.epoch_of(producer_id)
        batches = [] if epoch is None else self.batches(producer_id, epoch)
        return batches[-1].sequence + batches[-1].count if batches else 0

    def expect(self, producer_id: int, epoch: int, sequence: int, count: int) -> object:
        """What E2 to E6 say: an error, the stored entry, or None to append."""
        current = self.epoch_of(producer_id)
        if current is None:
            return None
        if epoch < current:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if epoch > current:
            return None if sequence == 0 else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        batches = self.batches(producer_id, epoch)
        for stored in batches[-5:]:
            if (stored.sequence, stored.count) == (sequence, count):
                return stored
        if batches:
            fits = sequence == batches[-1].sequence + batches[-1].count
        else:
            lower = [e for e in self.known(producer_id) if e.epoch < epoch]
            fits = sequence == 0 or not lower
        return None if fits else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def last_stable_offset(self) -> int:
        undecided = [
            t.first
            for t in self.transactions
            if t.marker is None or t.marker >= self.high_watermark
        ]
        return max(min([*undecided, self.high_watermark]), self.log_start)

    def visible(self, isolation: Isolation) -> list[int]:
        transactional = isolation is Isolation.TRANSACTIONAL
        upper = self.last_stable_offset() if transactional else self.high_watermark
        return [
            e.offset
            for e in self.entries
            if not e.is_marker
            and max(self.log_start, e.offset) < min(e.offset + e.count, upper)
            and not (transactional and e.transaction is not None and not e.transaction.committed)
        ]


class LogMachine(RuleBasedStateMachine):
    """Producers, coordinators, flushes and restarts in any order."""

    @initialize(segment_bytes=st.sampled_from([400, 1000, 1 << 30]))
    def begin(self, segment_bytes: int) -> None:
        self.partition = Driver(segment_bytes=segment_bytes, index_interval_bytes=200)
        self.model = Model()
        self.unflushed: list[int] = []
        self.guards: dict[int, tuple[object, int]] = {}

    @rule(count=COUNTS)
    def produce_plainly(self, count: int) -> None:
        self.plain(self.partition.produce(count=count), count)

    def plain(self, outcome: object, count: int) -> None:
        if self.model.sealed_at is None:
            self.stored(outcome, Entry(self.model.end, count))
        else:
            assert isinstance(outcome, Rejected), outcome
            assert outcome.error is ErrorCode.SEGMENT_SEALED

    @rule(behind=st.sampled_from([0, 0, 1, -1]), epoch=st.sampled_from([0, 0, -1, 1]))
    def update(self, behind: int, epoch: int) -> None:
        """A conditional append is stored by who knows the end of the log, and by nobody else."""
        model = self.model
        epochs = {0 if model.end > 0 else -1} | ({-1} if model.log_start == model.end else set())
        is_known = behind == 0 and epoch in epochs
        outcome = self.partition.append(make_batch(), condition=Revision(epoch, model.end - behind))
        if is_known or model.sealed_at is not None:
            self.plain(outcome, 1)
        else:
            assert isinstance(outcome, Rejected), outcome
            assert outcome.error is ErrorCode.STALE_REVISION

    @rule(really=st.sampled_from([False, False, False, True]))
    def seal(self, really: bool) -> None:
        model = self.model
        if model.sealed_at is None and really:
            model.sealed_at = model.end
            model.entries.append(Entry(model.end, 1, is_marker=True))
            model.end += 1 + len(model.owners)
        if model.sealed_at is not None:
            assert self.partition.seal() == Appended(model.sealed_at, model.sealed_at + 1)

    @rule(
        producer_id=PRODUCERS,
        epoch_step=st.sampled_from([0, 0, 0, 0, 1, -1]),
        step=st.sampled_from([0, 0, 0, 0, 1, -1, -2]),
        count=COUNTS,
        transactional=st.booleans(),
        verified=st.sampled_from([True, True, True, False]),
    )
    def produce(
        self,
        producer_id: int,
        epoch_step: int,
        step: int,
        count: int,
        transactional: bool,
        verified: bool,
    ) -> None:
        epoch = max(0, (self.model.epoch_of(producer_id) or 0) + epoch_step)
        sequence = 0 if epoch_step > 0 else self.model.next_sequence(producer_id)
        self.attempt(producer_id, epoch, max(0, sequence + step), count, transactional, verified)

    @precondition(lambda self: self.model.entries)
    @rule(back=st.integers(1, 8))
    def retry(self, back: int) -> None:
        entry = self.model.entries[-min(back, len(self.model.entries))]
        if entry.is_marker or entry.producer_id < 0:
            return
        self.attempt(
            entry.producer_id,
            entry.epoch,
            entry.sequence,
            entry.count,
            entry.transaction is not None,
            verified=True,
        )

    def attempt(
        self,
        producer_id: int,
        epoch: int,
        sequence: int,
        count: int,
        transactional: bool,
        verified: bool,
    ) -> None:
        log, model = self.partition.log, self.model
        guard = None
        if transactional and verified:
            guard = log.begin_verification(producer_id, epoch)
        batch = make_batch(producer_id, epoch, sequence, count, transactional=transactional)
        outcome = self.partition.append(batch, guard)
        expected = model.expect(producer_id, epoch, sequence, count)
        transaction = model.open_transaction(producer_id)
        if model.sealed_at is not None and not isinstance(expected, Entry):
            is_fenced = expected is ErrorCode.INVALID_PRODUCER_EPOCH
            expected = expected if is_fenced else ErrorCode.SEGMENT_SEALED
        if isinstance(expected, ErrorCode):
            assert isinstance(outcome, Rejected), (outcome, expected)
            assert outcome.error is expected
        elif isinstance(expected, Entry):
            assert outcome == Duplicate(expected.offset, expected.offset + expected.count)
        elif (
            transaction.epoch != epoch or not transactional
            if transaction is not None
            else transactional and not verified
        ):
            assert isinstance(outcome, Rejected), outcome
            assert outcome.error is ErrorCode.INVALID_TXN_STATE
        else:
            if transactional and transaction is None:
                transaction = Transaction(producer_id, epoch, model.end)
                model.transactions.append(transaction)
            entry = Entry(model.end, count, producer_id, epoch, sequence)
            entry.transaction = transaction if transactional else None
            self.stored(outcome, entry)

    def stored(self, outcome: object, entry: Entry) -> None:
        assert isinstance(outcome, Appended), outcome
        self.begun(outcome.base_offset)
        if entry.transaction is not None and entry.transaction.first == entry.offset:
            entry.transaction.first = outcome.base_offset
        entry.offset = outcome.base_offset
        assert outcome == Appended(entry.offset, entry.offset + entry.count)
        self.model.entries.append(entry)
        self.model.end += entry.count

    def begun(self, base_offset: int) -> None:
        """A new segment begins with all owners, before what did not fit (D4)."""
        model = self.model
        assert base_offset - model.end in (0, len(model.owners)), (base_offset, model.end)
        model.end = base_offset

    @rule(
        group=st.sampled_from([None, "a", "b"]),
        step=st.sampled_from([0, 0, 1, 1, -1]),
        live=st.booleans(),
    )
    def set_owner(self, group: str | None, step: int, live: bool) -> None:
        known = self.model.owners.get(group)
        epoch = max(1, (0 if known is None else known[0]) + step)
        outcome = self.partition.own(epoch, group, live=live)
        if known is None or epoch > known[0] or (epoch == known[0] and known[1] > live):
            self.stored(outcome, Entry(self.model.end, 1, is_marker=True))
            self.model.owners[group] = epoch, live, self.model.end - 1
        elif known[:2] == (epoch, live):
            assert outcome == Appended(known[2], known[2] + 1)
        else:
            assert isinstance(outcome, Rejected), outcome
            assert outcome.error is ErrorCode.OWNER_FENCED

    @rule(producer_id=PRODUCERS, epoch_step=st.sampled_from([0, 0, 1]))
    def remember_a_guard(self, producer_id: int, epoch_step: int) -> None:
        epoch = (self.model.epoch_of(producer_id) or 0) + epoch_step
        guard = self.partition.log.begin_verification(producer_id, epoch)
        if guard is not None:
            self.guards[producer_id] = guard, epoch

    @rule(
        producer_ids=st.lists(PRODUCERS, min_size=1, max_size=3, unique=True),
        commit=st.booleans(),
        drop_state=st.sampled_from([False, False, True]),
        epoch_step=st.sampled_from([0, 0, 1]),
    )
    def mark(
        self, producer_ids: list[int], commit: bool, drop_state: bool, epoch_step: int
    ) -> None:
        model = self.model
        markers = []
        for producer_id in producer_ids:
            epoch = (model.epoch_of(producer_id) or 0) + epoch_step
            markers.append(marker(producer_id, epoch, commit=commit, drop_state=drop_state))
        guards = {pid: self.guards.pop(pid) for pid in producer_ids if pid in self.guards}
        outcome = self.partition.mark(*markers)
        assert isinstance(outcome, Appended), outcome
        self.begun(outcome.base_offset)
        for producer_id in producer_ids:
            known = model.epoch_of(producer_id)
            transaction = model.open_transaction(producer_id)
            epoch = (known or 0) + epoch_step
            marked = any(e.is_marker for e in model.known(producer_id))
            says_nothing_new = known is not None and not (
                transaction is not None or drop_state or epoch > known or not marked
            )
            if says_nothing_new or (known is None and drop_state):
                continue
            entry = Entry(model.end, 1, producer_id, epoch, is_marker=True)
            model.entries.append(entry)
            model.end += 1
            if transaction is not None:
                transaction.marker, transaction.committed = entry.offset, commit
            if drop_state:
                model.dropped_at[producer_id] = entry.offset
        assert outcome.end_offset == model.end
        for producer_id, (guard, epoch) in guards.items():
            self.a_stale_guard_opens_nothing(producer_id, guard, epoch)

    def a_stale_guard_opens_nothing(self, producer_id: int, guard: object, epoch: int) -> None:
        expected = self.model.expect(producer_id, epoch, 0, 1)
        batch = make_batch(producer_id, epoch, 0, transactional=True)
        outcome = self.partition.append(batch, guard)
        if expected is None:
            assert isinstance(outcome, Rejected), outcome
            sealed = self.model.sealed_at is not None
            code = ErrorCode.SEGMENT_SEALED if sealed else ErrorCode.INVALID_TXN_STATE
            assert outcome.error is code

    @rule()
    def write(self) -> None:
        end_offset = self.partition.write()
        if end_offset is not None:
            self.unflushed.append(end_offset)

    @precondition(lambda self: self.unflushed)
    @rule(everything=st.booleans())
    def sync(self, everything: bool) -> None:
        end_offset = self.unflushed[-1 if everything else 0]
        del self.unflushed[: len(self.unflushed) if everything else 1]
        flush_and_commit(self.partition.log, end_offset)
        self.model.high_watermark = end_offset

    @rule(part=st.floats(0, 1))
    def delete_records(self, part: float) -> None:
        model = self.model
        sealed = model.sealed_at is not None
        offset = model.log_start + int(
            part * (model.high_watermark - model.log_start) / (1 if sealed else 4)
        )
        self.partition.log.keep_owners(offset)
        if self.partition.log.log_end_offset > model.end:
            model.end = self.partition.log.log_end_offset
            self.write()
            self.sync(everything=True)
        for base in self.partition.log.advance_start(offset):
            del self.partition.files[base]
        model.log_start = offset if model.sealed_at is None else min(offset, model.sealed_at)

    @rule()
    def rebuild_the_owners(self) -> None:
        """Wherever the log begins by now, its files have them (D4)."""
        self.write()
        if self.unflushed:
            self.sync(everything=True)
        self.owners_are_those_of_the_model(self.partition.rebuilt())

    @precondition(lambda self: self.model.log_start == 0)
    @rule()
    def restart(self) -> None:
        self.write()
        if self.unflushed:
            self.sync(everything=True)
        before = state_of(self.partition.log)
        self.partition = self.partition.restarted()
        assert state_of(self.partition.log) == before
        self.guards.clear()

    @invariant()
    def offsets_are_ordered_and_as_the_model_has_them(self) -> None:
        log, model = self.partition.log, self.model
        assert (
            log.log_start_offset
            <= log.last_stable_offset
            <= log.high_watermark
            <= log.log_end_offset
        )
        assert log.log_end_offset == model.end
        assert log.high_watermark == model.high_watermark
        assert log.last_stable_offset == model.last_stable_offset()

    @invariant()
    def owners_are_those_of_the_model(self, log: PartitionLog | None = None) -> None:
        found = (log or self.partition.log)._state.owners
        assert {
            stored.owner.group: (stored.owner.epoch, stored.owner.is_live, stored.offset)
            for stored in found
        } == self.model.owners

    @invariant()
    def the_seal_is_where_the_model_has_it(self) -> None:
        assert self.partition.log.sealed_at == self.model.sealed_at

    @invariant()
    def open_transactions_are_those_without_a_marker(self) -> None:
        assert [
            (t.producer_id, t.first_offset) for t in self.partition.log.open_transactions()
        ] == [(t.producer_id, t.first) for t in self.model.transactions if t.marker is None]

    @invariant()
    def readers_see_what_the_model_says(self) -> None:
        for isolation in (Isolation.TRANSACTIONAL, Isolation.REPLICATED):
            assert self.partition.visible(isolation) == self.model.visible(isolation)


TestLog = LogMachine.TestCase
TestLog.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
