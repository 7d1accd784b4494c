"""Laws of versioned transactions, under any order of runs, attempts, repeats, timeouts and crashes.

Two queries, each with up to three runs, drive one app. Attempts join, enlist under a guard and
write; drivers commit, abort and repeat themselves. Nobody is answered before the commit; a crash
takes what is not committed, with its answers.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fencelog.coordination.versioned.answers import JoinResult
from fencelog.coordination.versioned.records import AppKey, read_app, read_key
from fencelog.coordination.versioned.shard import VersionedShard
from fencelog.coordination.versioned.state import App, Caller, Phase
from fencelog.errors import ErrorCode
from fencelog.types import ProducerEpoch, ProducerId, TopicPartition
from tests.support.runtime import Runtime
from tests.unit.coordination.partition import Partition

APP = "etl"
FIRST_EPOCH = ProducerEpoch(0)
PARTITIONS = [TopicPartition("out", 0), TopicPartition("out", 1)]

callers = st.builds(
    Caller,
    app=st.just(APP),
    query_id=st.sampled_from(["q1", "q1", "q1", "q2"]),
    run_id=st.sampled_from(["r1", "r2", "r3"]),
    version=st.integers(0, 3),
    takeover=st.sampled_from([False, False, False, True]),
)
fingerprints = st.sampled_from([b"a", b"a", b"a", b"b"])


@dataclass
class Waiting:
    """An answer that waits for the commit."""

    end: int
    tell: Callable[[], None]


@dataclass(frozen=True)
class Decided:
    """A commit, as the log has it."""

    version: int
    fingerprint: bytes
    named: frozenset[ProducerId]


@dataclass
class Truth:
    """What was promised to drivers, and the runs that got the promise, oldest first."""

    committed: list[tuple[Caller, bytes, frozenset[ProducerId]]] = field(default_factory=list)
    joined: dict[ProducerId, Caller] = field(default_factory=dict)


class Versions(RuleBasedStateMachine):
    """The world: one shard, two partitions, a few drivers and their attempts."""

    def __init__(self) -> None:
        super().__init__()
        self.runtime: Runtime[VersionedShard] = Runtime(VersionedShard, hold=True)
        self.partitions = {each: Partition() for each in PARTITIONS}
        self.truth = Truth()
        self.waiting: list[Waiting] = []
        self.requests: list[Callable[[], object]] = []

    def later(self, tell: Callable[[], None]) -> None:
        self.waiting.append(Waiting(len(self.runtime.log), tell))

    def apps(self) -> list[App]:
        """Every state of the app, in the log's order."""
        return [
            read_app(APP, record.value)
            for record in self.runtime.log
            if record.value is not None and isinstance(read_key(record.key), AppKey)
        ]

    # -- requests ---------------------------------------------------------------------------------

    @rule(caller=callers)
    def join(self, caller: Caller) -> None:
        self.send_join(caller)
        self.requests.append(lambda: self.send_join(caller))

    @rule(is_answered=st.booleans(), at=st.sampled_from([PARTITIONS, PARTITIONS[:1]]))
    def another_attempt_works(self, is_answered: bool, at: list[TopicPartition]) -> None:
        """Most callers that are made up are refused; this one is of the run that drives."""
        if (app := self.runtime.shard.describe(APP)) is None:
            return
        version = app.open_version if app.open_version >= 0 else app.last_version + 1
        result = self.send_join(self.driver(version))
        if is_answered:
            self.commit_log()
            for each in at if result.error is ErrorCode.NONE else []:
                self.enlist_and_append(result.producer_id, each)
            self.commit_log()

    @rule()
    def everything_settles(self) -> None:
        self.commit_log()
        self.send_markers(2, True)
        self.commit_log()

    def driver(self, version: int) -> Caller:
        app = self.runtime.shard.describe(APP)
        assert app is not None
        return Caller(app=APP, query_id=app.query_id, run_id=app.run_id, version=version)

    def send_join(self, caller: Caller) -> JoinResult:
        decision = self.runtime.shard.join(
            caller,
            timeout_ms=60_000,
            new_producer_id=self.runtime.fresh_producer_id,
            wall_ms=self.runtime.wall_ms,
        )
        result = decision.response
        self.runtime.used(result.producer_id)
        self.runtime.append(decision)
        if result.error is ErrorCode.NONE:
            assert result.producer_id not in self.truth.joined, "an attempt's id is its own"
            self.later(lambda: self.truth.joined.update({result.producer_id: caller}))
        return result

    @rule(data=st.data(), at=st.sampled_from(PARTITIONS))
    def produce(self, data: st.DataObject, at: TopicPartition) -> None:
        if self.truth.joined:
            newest = sorted(self.truth.joined)[-3:]
            producer_id = data.draw(st.sampled_from(newest))
            self.enlist_and_append(producer_id, at)
            self.requests.append(lambda: self.enlist_and_append(producer_id, at))

    def enlist_and_append(self, producer_id: ProducerId, at: TopicPartition) -> None:
        partition = self.partitions[at]
        if partition.open_instance(producer_id, FIRST_EPOCH) is not None:
            partition.append(producer_id, FIRST_EPOCH, producer_id)
            return
        guard = partition.guard(producer_id)
        decision = self.runtime.shard.add_partitions(producer_id, FIRST_EPOCH, at)
        if self.runtime.append(decision) is not ErrorCode.NONE:
            return

        def append() -> None:
            if partition.guard(producer_id) == guard:
                partition.append(producer_id, FIRST_EPOCH, producer_id)

        self.later(append)

    @rule(caller=callers, fingerprint=fingerprints, data=st.data())
    def commit(self, caller: Caller, fingerprint: bytes, data: st.DataObject) -> None:
        known = sorted(self.truth.joined)[-4:]
        named = data.draw(st.frozensets(st.sampled_from(known))) if known else frozenset()
        self.send_commit(caller, fingerprint, named)
        self.requests.append(lambda: self.send_commit(caller, fingerprint, named))

    @rule(fingerprint=fingerprints, data=st.data())
    def the_driver_commits(self, fingerprint: bytes, data: st.DataObject) -> None:
        app = self.runtime.shard.describe(APP)
        if app is not None and app.open_version >= 0:
            members = [each.producer_id for each in app.open_producers]
            zombies = sorted(self.truth.joined)[-4:]
            likely = [*members, *members, *members, *zombies]
            named = data.draw(st.frozensets(st.sampled_from(likely))) if likely else frozenset()
            caller = self.driver(app.open_version)
            self.send_commit(caller, fingerprint, named)
            self.requests.append(lambda: self.send_commit(caller, fingerprint, named))

    def send_commit(
        self, caller: Caller, fingerprint: bytes, named: frozenset[ProducerId]
    ) -> ErrorCode:
        decision = self.runtime.shard.commit(
            caller, fingerprint, named, wall_ms=self.runtime.wall_ms
        )
        error = self.runtime.append(decision)
        if error is ErrorCode.NONE:
            self.check_driver(caller)
            self.later(lambda: self.truth.committed.append((caller, fingerprint, named)))
        return error

    def check_driver(self, caller: Caller) -> None:
        app = self.apps()[-1]
        assert (app.query_id, app.run_id) == (caller.query_id, caller.run_id), "a zombie decided"

    @rule(caller=callers)
    def abort(self, caller: Caller) -> None:
        self.send_abort(caller)
        self.requests.append(lambda: self.send_abort(caller))

    @rule()
    def the_driver_aborts(self) -> None:
        app = self.runtime.shard.describe(APP)
        if app is not None and app.open_version >= 0:
            self.send_abort(self.driver(app.open_version))

    @rule(data=st.data())
    def a_late_driver_names_what_was_aborted(self, data: st.DataObject) -> None:
        self.another_attempt_works(True, PARTITIONS)
        self.the_driver_aborts()
        self.everything_settles()
        self.another_attempt_works(True, PARTITIONS)
        self.the_driver_commits(b"a", data)

    def send_abort(self, caller: Caller) -> ErrorCode:
        before = self.commits()
        decision = self.runtime.shard.abort(caller, wall_ms=self.runtime.wall_ms)
        error = self.runtime.append(decision)
        assert self.commits() == before, "an abort undoes nothing that is committed"
        return error

    @rule(caller=callers)
    def renew(self, caller: Caller) -> None:
        if (
            self.runtime.append(self.runtime.shard.renew(caller, self.runtime.now))
            is ErrorCode.NONE
        ):
            self.check_driver(caller)

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
        groups = list(self.runtime.shard.outstanding_markers(self.runtime.committed))[:count]
        for group in groups:
            for marker in group.markers:
                epoch, commit = marker.producer_epoch, marker.commit
                self.partitions[group.partition].mark(marker.producer_id, epoch, commit)
            if is_reported:
                decision = self.runtime.shard.markers_written(
                    group.app, group.incarnation, [group.partition]
                )
                self.runtime.append(decision)

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
        self.another_attempt_works(True, PARTITIONS)
        self.the_driver_commits(b"a", data)
        self.send_markers(2, False)
        self.the_power_fails()

    # -- laws -------------------------------------------------------------------------------------

    def commits(self) -> list[Decided]:
        """The decisions to commit, read from the log alone."""
        decided: list[Decided] = []
        before: App | None = None
        for app in self.apps():
            is_taken_over = before is not None and before.query_id != app.query_id
            last = -1 if before is None or is_taken_over else before.last_version
            if app.last_version != last and app.last_version >= 0:
                decided.append(Decided(app.last_version, app.fingerprint, app.committing))
            before = app
        return decided

    @invariant()
    def versions_follow_one_another(self) -> None:
        """V3: within one numbering, each version is decided once, and none is left out."""
        before: App | None = None
        for app in self.apps():
            if before is not None and before.query_id == app.query_id:
                assert app.last_version in {before.last_version, before.last_version + 1} or (
                    before.last_version == -1
                )
                if app.last_version == before.last_version:
                    assert app.fingerprint == before.fingerprint
            before = app

    @invariant()
    def only_named_producers_commit_and_all_of_them_do(self) -> None:
        """S4, V1: what is visible is exactly what a decision named."""
        named: set[ProducerId] = set()
        for decided in self.commits():
            assert not named & decided.named, "an attempt contributes once"
            named |= decided.named
        for partition in self.partitions.values():
            for write in partition.writes:
                if write.outcome is not None:
                    assert write.outcome == (write.producer_id in named)

    @invariant()
    def who_was_told_success_finds_its_version_decided(self) -> None:
        decided = {(each.version, each.fingerprint) for each in self.commits()}
        for caller, fingerprint, _ in self.truth.committed:
            assert (caller.version, fingerprint) in decided

    @invariant()
    def what_is_open_in_a_partition_is_known_to_the_coordinator(self) -> None:
        members = {each.producer_id: each for each in self.runtime.shard._table.members(APP)}
        for at, partition in self.partitions.items():
            for write in partition.writes:
                if write.outcome is None:
                    joined = members.get(ProducerId(write.producer_id))
                    assert joined is not None, "this write would hang for ever"
                    assert at in joined.partitions

    def teardown(self) -> None:
        """Left alone, everything ends, and nothing is kept of the attempts."""
        self.commit_log()
        self.time_passes(61)
        self.commit_log()
        self.send_markers(2, True)
        assert list(self.runtime.shard.outstanding_markers(self.runtime.committed)) == []
        assert self.runtime.shard._table.producers == {}
        assert all(app.phase is Phase.IDLE for app in self.runtime.shard._table.apps.values())
        for partition in self.partitions.values():
            assert all(write.outcome is not None for write in partition.writes)
        self.only_named_producers_commit_and_all_of_them_do()
        if self.runtime.shard.describe(APP) is not None:
            self.check_next_batch()

    def check_next_batch(self) -> None:
        """The app is not stuck: its driver's next batch goes through."""
        app = self.runtime.shard.describe(APP)
        assert app is not None
        caller = self.driver(app.last_version + 1)
        result = self.send_join(caller)
        assert result.error is ErrorCode.NONE
        stranger = replace(caller, query_id="stranger")
        assert self.send_join(stranger).error is ErrorCode.APP_IN_USE
        assert self.send_commit(caller, b"n", frozenset({result.producer_id})) is ErrorCode.NONE


TestVersions = pytest.mark.slow(Versions.TestCase)
TestVersions.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
