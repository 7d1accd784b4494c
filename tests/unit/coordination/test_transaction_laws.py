"""Laws of the transaction coordinator, under any order of requests, repeats, timeouts and crashes.

Three clients share one transactional id, so each is another's zombie. Two partitions store their
writes as leaders do: verified first, under a guard. Nobody is answered before the commit; a crash
takes what is not committed, with its answers.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fencelog.coordination.shard import Decision
from fencelog.coordination.transaction.records import read_key, read_value, write_transaction
from fencelog.coordination.transaction.shard import InitResult, TransactionShard
from fencelog.coordination.transaction.state import EPOCH_EXHAUSTED, Identity, TxnState
from fencelog.errors import ErrorCode
from fencelog.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerEpoch, TopicPartition
from tests.unit.coordination.partition import Partition
from tests.unit.coordination.runtime import Runtime

ID = "pay"
NOBODY = Identity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
PARTITIONS = [TopicPartition("orders", 0), TopicPartition("orders", 1)]

clients = st.integers(0, 2)
some_partitions = st.sets(st.sampled_from(PARTITIONS), min_size=1)


@dataclass
class Waiting:
    """An answer that waits for the commit."""

    end: int
    tell: Callable[[], None]


@dataclass
class Truth:
    """What was promised to clients."""

    granted: list[Identity] = field(default_factory=list)
    asked: dict[Identity, Identity] = field(default_factory=dict)
    told: dict[object, bool] = field(default_factory=dict)


class Transactions(RuleBasedStateMachine):
    """The world: one shard, two partitions, three clients."""

    def __init__(self) -> None:
        super().__init__()
        self.runtime: Runtime[TransactionShard] = Runtime(TransactionShard, hold=True)
        self.partitions = {each: Partition() for each in PARTITIONS}
        self.clients = [NOBODY] * 3
        self.truth = Truth()
        self.waiting: list[Waiting] = []
        self.requests: list[Callable[[], object]] = []

    def instance(self) -> object:
        """The latest transaction: the offset at which it became ongoing."""
        latest, was_open = None, False
        for offset, record in enumerate(self.runtime.log):
            assert record.value is not None
            is_open = read_value(read_key(record.key), record.value).state is TxnState.ONGOING
            if is_open and not was_open:
                latest = offset
            was_open = is_open
        return latest

    def later(self, tell: Callable[[], None]) -> None:
        self.waiting.append(Waiting(len(self.runtime.log), tell))

    @initialize(age=st.sampled_from([0, EPOCH_EXHAUSTED - 2, EPOCH_EXHAUSTED - 1]))
    def age(self, age: int) -> None:
        """The producer may have been initialised so often that its epochs end soon."""
        self.start_producer(0, False)
        record = self.runtime.log[0]
        assert record.value is not None
        first = read_value(ID, record.value)
        aged = Identity(first.producer.producer_id, ProducerEpoch(age))
        data = {**{key: getattr(first, key) for key in type(first).__slots__}, "producer": aged}
        self.runtime.append(Decision((write_transaction(type(first)(**data)),), None))
        self.waiting.clear()
        self.requests.clear()
        self.clients[0] = aged
        self.truth.granted.append(aged)
        self.commit_log()

    # -- requests ---------------------------------------------------------------------------------

    @rule(client=clients, known=st.booleans())
    def start_producer(self, client: int, known: bool) -> None:
        asked = self.clients[client] if known else NOBODY
        result = self.init(asked)

        def tell() -> None:
            if result.error is ErrorCode.NONE:
                self.granted(asked, Identity(result.producer_id, result.producer_epoch))
                self.clients[client] = Identity(result.producer_id, result.producer_epoch)

        self.later(tell)
        self.requests.append(lambda: self.init(asked))

    def init(self, asked: Identity) -> InitResult:
        decision = self.runtime.shard.init_producer_id(
            ID,
            60_000,
            *asked,
            new_producer_id=self.runtime.fresh_producer_id,
            wall_ms=self.runtime.wall_ms,
        )
        self.runtime.used(decision.response.producer_id)
        return self.runtime.append(decision)

    def granted(self, asked: Identity, identity: Identity) -> None:
        """E7: epochs end at 32766, an identity has one owner, and nothing older is open."""
        assert identity.producer_epoch <= EPOCH_EXHAUSTED
        if identity in self.truth.granted:
            assert self.truth.asked.get(identity) == asked, "only its own retry gets it again"
        else:
            self.truth.granted.append(identity)
            self.truth.asked[identity] = asked
        for partition in self.partitions.values():
            for write in partition.writes:
                if (write.producer_id, write.epoch) != identity:
                    assert write.outcome is not None, "an older incarnation's data is open"

    @rule(client=clients, partitions=some_partitions)
    def add_partitions(self, client: int, partitions: set[TopicPartition]) -> None:
        producer = self.clients[client]

        def add() -> ErrorCode:
            return self.runtime.append(
                self.runtime.shard.add_partitions(
                    ID, *producer, partitions, wall_ms=self.runtime.wall_ms
                )
            )

        if add() is ErrorCode.NONE:
            self.check_not_fenced(producer)
        self.requests.append(add)

    @rule(client=clients, partition=st.sampled_from(PARTITIONS))
    def produce(self, client: int, partition: TopicPartition) -> None:
        producer = self.clients[client]
        self.verify_and_append(producer, partition)
        self.requests.append(lambda: self.verify_and_append(producer, partition))

    def verify_and_append(self, producer: Identity, at: TopicPartition) -> None:
        partition = self.partitions[at]
        if (instance := partition.open_instance(*producer)) is not None:
            partition.append(*producer, instance)
            return
        guard = partition.guard(producer.producer_id)
        if self.runtime.shard.verify(ID, *producer, at) is not ErrorCode.NONE:
            return
        instance = self.instance()

        def append() -> None:
            if partition.guard(producer.producer_id) == guard:
                partition.append(*producer, instance)

        self.later(append)

    @rule(client=clients, commit=st.booleans())
    def end(self, client: int, commit: bool) -> None:
        producer = self.clients[client]
        self.decide(producer, commit)
        self.requests.append(lambda: self.decide(producer, commit))

    def decide(self, producer: Identity, commit: bool) -> None:
        decision = self.runtime.shard.end_transaction(
            ID, *producer, commit, wall_ms=self.runtime.wall_ms
        )
        instance = self.instance()
        if self.runtime.append(decision) is ErrorCode.NONE:
            self.check_not_fenced(producer)
            self.later(lambda: self.tell(instance, commit))

    def tell(self, instance: object, commit: bool) -> None:
        assert self.truth.told.setdefault(instance, commit) == commit, "the answer never changes"

    def check_not_fenced(self, producer: Identity) -> None:
        assert producer == self.truth.granted[-1], "an older identity got its way (E2)"

    @rule(data=st.data())
    def a_delayed_request_arrives_again(self, data: st.DataObject) -> None:
        if self.requests:
            data.draw(st.sampled_from(self.requests))()

    # -- what happens by itself -------------------------------------------------------------------

    @rule()
    def commit_log(self) -> None:
        self.runtime.commit()
        while self.waiting and self.waiting[0].end <= self.runtime.committed:
            self.waiting.pop(0).tell()

    @rule(count=st.integers(1, 2), is_reported=st.booleans())
    def send_markers(self, count: int, is_reported: bool) -> None:
        for task in list(self.runtime.shard.outstanding_markers(self.runtime.committed)):
            some = sorted(task.partitions)[:count]
            for each in some:
                self.partitions[each].mark(task.producer_id, task.producer_epoch, task.commit)
            if is_reported:
                self.runtime.append(
                    self.runtime.shard.markers_written(
                        task.transactional_id,
                        task.producer_id,
                        task.producer_epoch,
                        some,
                        wall_ms=self.runtime.wall_ms,
                    )
                )

    @rule(seconds=st.sampled_from([10, 61]))
    def time_passes(self, seconds: int) -> None:
        self.runtime.advance(seconds)
        self.runtime.expire()

    @rule()
    def the_power_fails(self) -> None:
        self.runtime.crash()
        self.waiting.clear()
        for partition in self.partitions.values():
            partition.boots += 1

    # -- laws -------------------------------------------------------------------------------------

    @invariant()
    def a_transaction_ends_in_one_way_everywhere(self) -> None:
        ended: dict[object, bool] = dict(self.truth.told)
        for partition in self.partitions.values():
            for write in partition.writes:
                if write.outcome is not None:
                    assert ended.setdefault(write.instance, write.outcome) == write.outcome

    @invariant()
    def what_is_open_in_a_partition_is_known_to_the_coordinator(self) -> None:
        known = self.runtime.shard.describe(ID)
        for at, partition in self.partitions.items():
            for write in partition.writes:
                if write.outcome is None:
                    assert known is not None
                    assert at in known.partitions, "this write would hang for ever"

    def teardown(self) -> None:
        """Left alone, everything ends."""
        self.commit_log()
        self.time_passes(61)
        self.commit_log()
        for _ in range(2):
            self.send_markers(2, True)
            self.commit_log()
        assert list(self.runtime.shard.outstanding_markers(self.runtime.committed)) == []
        for partition in self.partitions.values():
            assert all(write.outcome is not None for write in partition.writes)
        self.a_transaction_ends_in_one_way_everywhere()


TestTransactions = Transactions.TestCase
TestTransactions.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
