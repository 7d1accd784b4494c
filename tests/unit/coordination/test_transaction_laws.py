"""Laws of the transaction coordinator, under any order of requests, repeats, timeouts and crashes.

Incarnations of one producer share a transactional id, so each is the next one's zombie. Two
partitions store their writes as leaders do: verified first, under a guard. Nobody is answered
before the commit; a crash takes what is not committed, with its answers.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fencelog.coordination.shard import Decision
from fencelog.coordination.transaction.records import read_key, read_value, write_transaction
from fencelog.coordination.transaction.shard import InitResult, TransactionShard
from fencelog.coordination.transaction.state import EPOCH_EXHAUSTED, ProducerIdAndEpoch, TxnState
from fencelog.errors import ErrorCode
from fencelog.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerEpoch, TopicPartition
from tests.support.runtime import Runtime
from tests.unit.coordination.partition import Partition, Write

ID = "pay"
NOBODY = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
PARTITIONS = [TopicPartition("orders", 0), TopicPartition("orders", 1)]

# Most requests are the newest incarnation's; a zombie's are refused, which is soon seen.
zombies = st.sampled_from([False, False, False, True])
some_partitions = st.sampled_from([PARTITIONS, PARTITIONS, PARTITIONS[:1]])


@dataclass
class Waiting:
    """An answer that waits for the commit."""

    end: int
    tell: Callable[[], None]


@dataclass
class Client:
    """An incarnation, and what it knows of its present transaction."""

    identity: ProducerIdAndEpoch
    number: int = 0
    begun: int = -1
    writes: list[Write] = field(default_factory=list)


class Transactions(RuleBasedStateMachine):
    """The world: one shard, two partitions, and a producer that is started again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.runtime: Runtime[TransactionShard] = Runtime(TransactionShard, hold=True)
        self.partitions = {each: Partition() for each in PARTITIONS}
        self.clients: list[Client] = []
        self.asked: dict[ProducerIdAndEpoch, ProducerIdAndEpoch] = {}
        self.told: dict[object, bool] = {}
        self.promised: list[tuple[Write, bool]] = []
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

    def client(self, zombie: bool, data: st.DataObject) -> Client:
        return data.draw(st.sampled_from(self.clients)) if zombie else self.clients[-1]

    @initialize(age=st.sampled_from([0, EPOCH_EXHAUSTED - 2, EPOCH_EXHAUSTED - 1]))
    def first_start(self, age: int) -> None:
        """The producer may have been started so often that its epochs end soon."""
        self.init(NOBODY)
        first = self.runtime.shard.describe(ID)
        assert first is not None
        aged = first.producer._replace(producer_epoch=ProducerEpoch(age))
        self.runtime.append(Decision((write_transaction(replace(first, producer=aged)),), None))
        self.commit_log()
        self.clients.append(Client(aged))

    # -- requests ---------------------------------------------------------------------------------

    @rule(zombie=zombies, is_known=st.booleans(), data=st.data())
    def start_producer(self, zombie: bool, is_known: bool, data: st.DataObject) -> None:
        asked = self.client(zombie, data).identity if is_known else NOBODY
        result = self.init(asked)

        def tell() -> None:
            if result.error is ErrorCode.NONE:
                self.grant(asked, ProducerIdAndEpoch(result.producer_id, result.producer_epoch))

        self.later(tell)
        self.requests.append(lambda: self.init(asked))

    def init(self, asked: ProducerIdAndEpoch) -> InitResult:
        decision = self.runtime.shard.init_producer_id(
            ID,
            60_000,
            *asked,
            new_producer_id=self.runtime.fresh_producer_id,
            wall_ms=self.runtime.wall_ms,
        )
        self.runtime.used(decision.response.producer_id)
        return self.runtime.append(decision)

    def grant(self, asked: ProducerIdAndEpoch, identity: ProducerIdAndEpoch) -> None:
        """E7: epochs end at 32766, an identity has one owner, and nothing older is open."""
        assert identity.producer_epoch <= EPOCH_EXHAUSTED
        if identity in {client.identity for client in self.clients}:
            assert self.asked.get(identity) == asked, "only its own retry gets it again"
        else:
            self.clients.append(Client(identity))
            self.asked[identity] = asked
        for partition in self.partitions.values():
            for write in partition.writes:
                if (write.producer_id, write.epoch) != identity:
                    assert write.outcome is not None, "an older incarnation's data is open"

    @rule(zombie=zombies, partitions=some_partitions, data=st.data())
    def begin(self, zombie: bool, partitions: list[TopicPartition], data: st.DataObject) -> None:
        """Add partitions and write to each; the answers come at once, if the disk is quick."""
        client = self.client(zombie, data)
        if self.add(client, partitions):
            client.begun = client.number
        for at in partitions:
            self.write(client, at)
        self.requests.append(lambda: self.add(client, partitions))

    def add(self, client: Client, partitions: list[TopicPartition]) -> bool:
        decision = self.runtime.shard.add_partitions(
            ID, *client.identity, partitions, wall_ms=self.runtime.wall_ms
        )
        if self.runtime.append(decision) is not ErrorCode.NONE:
            return False
        self.check_not_fenced(client)
        return True

    @rule(zombie=zombies, at=st.sampled_from(PARTITIONS), data=st.data())
    def produce(self, zombie: bool, at: TopicPartition, data: st.DataObject) -> None:
        client = self.client(zombie, data)
        self.write(client, at)
        self.requests.append(lambda: self.write(client, at))

    def write(self, client: Client, at: TopicPartition) -> None:
        partition, producer, number = self.partitions[at], client.identity, client.number

        def append(instance: object) -> None:
            # What arrives after its transaction's end is nothing that the client counts on, nor
            # what it wrote though its next one was refused while the markers were under way.
            if partition.append(*producer, instance) and client.number == number == client.begun:
                client.writes.append(partition.writes[-1])

        if (instance := partition.open_instance(*producer)) is not None:
            append(instance)
            return
        guard = partition.guard(producer.producer_id)
        if self.runtime.shard.verify(ID, *producer, at) is ErrorCode.NONE:
            instance = self.instance()
            self.later(
                lambda: append(instance) if partition.guard(producer.producer_id) == guard else None
            )

    @rule(zombie=zombies, commit=st.booleans(), data=st.data())
    def end(self, zombie: bool, commit: bool, data: st.DataObject) -> None:
        client = self.client(zombie, data)
        client.number += 1
        number, writes, client.writes = client.number, client.writes, []

        def again() -> None:
            # Version 1 cannot recognise a delayed EndTxn that meets the next transaction (E14).
            if client.number == number and not client.writes:
                self.decide(client, commit, writes)

        self.decide(client, commit, writes)
        self.requests.append(again)

    def decide(self, client: Client, commit: bool, writes: list[Write]) -> None:
        before = self.runtime.shard.describe(ID)
        decision = self.runtime.shard.end_transaction(
            ID, *client.identity, commit, wall_ms=self.runtime.wall_ms
        )
        instance = self.instance()
        if self.runtime.append(decision) is ErrorCode.NONE:
            self.check_not_fenced(client)
            assert before is not None
            if decision.records:
                self.later(lambda: self.tell(instance, commit))
                self.later(lambda: self.promised.extend((each, commit) for each in writes))

    def tell(self, instance: object, commit: bool) -> None:
        assert self.told.setdefault(instance, commit) == commit, "the answer never changes"

    def check_not_fenced(self, client: Client) -> None:
        assert client is self.clients[-1], "an older identity got its way (E2)"

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
        for task in self.runtime.shard.outstanding_markers(self.runtime.committed):
            some = sorted(task.partitions)[:count]
            for each in some:
                self.partitions[each].mark(task.producer_id, task.producer_epoch, task.commit)
            if is_reported:
                decision = self.runtime.shard.markers_written(
                    task.transactional_id,
                    task.producer_id,
                    task.producer_epoch,
                    some,
                    wall_ms=self.runtime.wall_ms,
                )
                self.runtime.append(decision)

    @rule()
    def everything_settles(self) -> None:
        self.commit_log()
        self.send_markers(2, True)
        self.commit_log()

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

    @rule(data=st.data())
    def the_power_fails_right_after_a_decision(self, data: st.DataObject) -> None:
        """The decision is not on the disk; a marker that had outrun it would be (E16)."""
        self.begin(False, PARTITIONS, data)
        self.commit_log()
        self.end(False, True, data)
        self.send_markers(2, False)
        self.the_power_fails()

    # -- laws -------------------------------------------------------------------------------------

    @invariant()
    def a_transaction_ends_in_one_way_everywhere(self) -> None:
        ended = dict(self.told)
        for partition in self.partitions.values():
            for write in partition.writes:
                if write.outcome is not None:
                    assert ended.setdefault(write.instance, write.outcome) == write.outcome

    @invariant()
    def a_client_that_was_told_the_end_finds_all_its_writes_so(self) -> None:
        for write, commit in self.promised:
            assert write.outcome in (None, commit), (write, commit)

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
        self.everything_settles()
        assert self.runtime.shard.outstanding_markers(self.runtime.committed) == ()
        for partition in self.partitions.values():
            assert all(write.outcome is not None for write in partition.writes)
        self.a_transaction_ends_in_one_way_everywhere()
        self.a_client_that_was_told_the_end_finds_all_its_writes_so()


TestTransactions = Transactions.TestCase
TestTransactions.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
