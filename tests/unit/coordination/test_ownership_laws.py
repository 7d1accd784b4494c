"""Laws of ownership, under any order of claims, work, repeats, silence and crashes.

Claimants of three resources in two groups claim, wait, renew, release and vanish. Outstanding work
is done in any order, sometimes without a report. A plain reading of the whole log says who may be
granted what; two plain dictionaries stand for what the work leaves elsewhere.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fencelog.coordination.ownership.model import Claim, OwnershipTask, Wanted
from fencelog.coordination.ownership.records import ClaimKey, EndKey, read_grant, read_key
from fencelog.coordination.ownership.rules import all_wanted
from fencelog.coordination.ownership.state import Grant, Granted, Phase
from fencelog.errors import ErrorCode
from fencelog.log.ownership import Owner
from tests.unit.coordination.owners import LEASE_S, Owners, claim

RESOURCES = ["job", "orders/0", "orders/1"]
Numbered = tuple[str | None, str]
"""Group and resource."""

wanted = st.builds(
    Wanted,
    resource=st.sampled_from(RESOURCES),
    generation=st.sampled_from([-1, -1, -1, 0, 1, 2, 3]),
    prev_epoch=st.sampled_from([-1, -1, -1, -1, 0, 1, 2]),
)
asked = st.builds(
    claim,
    st.just(""),
    group=st.sampled_from([None, None, "g"]),
    name=st.sampled_from([None, None, "n"]),
    connection=st.integers(0, 4),
)
some_wanted = st.lists(wanted, min_size=1, max_size=3, unique_by=lambda each: each.resource)


@dataclass
class History:
    """What the whole log says, read plainly: nothing is ever removed."""

    grants: dict[str, Grant] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    newest: dict[Numbered, str] = field(default_factory=dict)

    def epoch(self, at: Numbered) -> tuple[int, int]:
        """Generation and epoch."""
        grant = self.grants.get(self.newest.get(at, ""))
        if grant is None:
            return 0, -1
        return next((r.generation, r.epoch) for r in grant.resources if r.resource == at[1])

    def owner(self, at: Numbered) -> Grant | None:
        session = self.newest.get(at)
        return None if session is None or session in self.ended else self.grants[session]


def expected(asked: Claim, history: History) -> ErrorCode:
    """What O1 to O6 say of a claim."""
    errors = set()
    for each in asked.wanted:
        _, epoch = history.epoch((asked.group, each.resource))
        if each.prev_epoch not in (-1, epoch):
            return ErrorCode.OWNER_FENCED
    for each in all_wanted(asked):
        at = (asked.group, each.resource)
        generation, _ = history.epoch(at)
        owner = history.owner(at)
        is_lower = 0 < each.generation < generation
        if owner is not None and owner.phase is Phase.GRANTING and not asked.waits:
            errors.add(ErrorCode.CLAIM_IN_PROGRESS)
        elif is_lower:
            is_owned = owner is not None
            errors.add(ErrorCode.RESOURCE_OWNED if is_owned else ErrorCode.STALE_GENERATION)
    order = [ErrorCode.STALE_GENERATION, ErrorCode.RESOURCE_OWNED, ErrorCode.CLAIM_IN_PROGRESS]
    return next((each for each in order if each in errors), ErrorCode.NONE)


class Ownership(RuleBasedStateMachine):
    """The world: one shard, its log, and what its work has left elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.owners = Owners(hold=True)
        self.left: dict[object, Owner] = {}
        self.severed: set[str] = set()
        self.waiting: dict[str, Claim] = {}
        self.late: list[OwnershipTask] = []
        self.sessions = 0

    def history(self) -> History:
        history = History()
        for record in self.owners.runtime.log:
            key = read_key(record.key)
            if isinstance(key, EndKey) and record.value is not None:
                history.ended.add(key.session)
            if isinstance(key, ClaimKey) and record.value is not None:
                grant = read_grant(key, record.value)
                if key.session not in history.grants:
                    self.check_grant(grant, history)
                history.grants[key.session] = grant
                for each in grant.resources:
                    at = (grant.group, each.resource)
                    if history.epoch(at)[1] <= each.epoch:
                        history.newest[at] = grant.session
        return history

    def check_grant(self, grant: Grant, history: History) -> None:
        """O3, and one owner per (group, resource, epoch)."""
        for each in grant.resources:
            at = (grant.group, each.resource)
            generation, epoch = history.epoch(at)
            assert each.epoch == max(epoch, 0) + 1, "epochs grow by one, for ever"
            assert each.generation in (0, generation + 1) or each.generation >= generation
            assert history.owner(at) is None, "its owner was severed first"

    # -- requests ---------------------------------------------------------------------------------

    @rule(asked=asked, wanted=some_wanted, waits=st.sampled_from([False, False, True]))
    def claim(self, asked: Claim, wanted: list[Wanted], waits: bool) -> None:
        self.sessions += 1
        session = f"s{self.sessions}"
        asked = replace(asked, wanted=tuple(wanted), session=session, waits=waits, claim_id=session)
        history = self.history()
        before = len(self.owners.runtime.log)
        answer = self.owners.own(asked)
        error = expected(asked, history)
        if error is not ErrorCode.NONE:
            assert answer.error is error
            assert len(self.owners.runtime.log) == before, "all or nothing"
            return
        names = {each.resource for each in all_wanted(asked)}
        is_taken = any(history.owner((asked.group, name)) is not None for name in names)
        if waits and (is_taken or self.rivals(asked, list(self.waiting.values()))):
            assert answer.error is ErrorCode.CLAIM_WAITING
            assert len(self.owners.runtime.log) == before, "who waits severs nobody"
            self.waiting[session] = asked
            return
        assert answer.error is ErrorCode.NONE
        grant = self.history().grants[session]
        assert [each.resource for each in grant.resources] == [
            each.resource for each in all_wanted(asked)
        ]

    def rivals(self, asked: Claim, others: list[Claim]) -> list[Claim]:
        names = {each.resource for each in all_wanted(asked)}
        return [
            each
            for each in others
            if each.group == asked.group and names & {other.resource for other in all_wanted(each)}
        ]

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        history = self.history()
        if history.grants:
            session = data.draw(st.sampled_from(list(history.grants)))
            self.owners.release(session, history.grants[session].group)

    @rule(name=st.sampled_from(RESOURCES), group=st.sampled_from([None, "g"]))
    def an_operator_releases(self, name: str, group: str | None) -> None:
        self.owners.take([name], group)
        owner = self.history().owner((group, name))
        assert owner is None or owner.phase is Phase.GRANTING

    @rule()
    def all_renew(self) -> None:
        for session, grant in self.history().grants.items():
            self.owners.renew(session, grant.epoch, grant.group)

    @rule(connection=st.integers(0, 4))
    def disconnect(self, connection: int) -> None:
        self.owners.disconnect(connection)
        for session, asked in list(self.waiting.items()):
            if asked.connection == connection:
                del self.waiting[session]

    # -- what happens by itself -------------------------------------------------------------------

    @rule()
    def commit(self) -> None:
        self.owners.runtime.commit()

    @rule(data=st.data(), count=st.integers(1, 3), is_reported=st.sampled_from([True, True, False]))
    def work(self, data: st.DataObject, count: int, is_reported: bool) -> None:
        for _ in range(count):
            tasks = self.owners.tasks()
            if tasks:
                task = tasks[data.draw(st.sampled_from(list(tasks)))]
                self.carry_out(task)
                if is_reported:
                    self.owners.done(task)
                    self.late.append(task)

    @rule(data=st.data())
    def a_report_is_repeated(self, data: st.DataObject) -> None:
        if self.late:
            self.owners.done(data.draw(st.sampled_from(self.late)))

    def carry_out(self, task: OwnershipTask) -> None:
        """What the task leaves elsewhere; it never revives what has ended."""
        if not task.is_live:
            self.severed.add(task.session)
        for place, owner in self.places(task):
            known = self.left.get(place)
            if known is not None and known.epoch == owner.epoch:
                assert known.is_live or not owner.is_live, "an ended owner lives again"
            if known is None or known.epoch <= owner.epoch:
                self.left[place] = owner

    def places(self, task: OwnershipTask) -> Iterator[tuple[object, Owner]]:
        for partition, owner in task.partitions.items():
            yield ("log", partition, owner.group), owner
            if task.group is not None:
                yield ("commits", partition, owner.group), owner
        yield from task.producers.items()

    @rule()
    def expire(self) -> None:
        before = set(self.history().grants)
        self.owners.runtime.expire()
        history = self.history()
        for session in history.grants.keys() - before:
            asked = self.waiting.pop(session)
            others = [each for each in self.waiting.values() if self.is_before(each, asked)]
            others = [each for each in others if self.owners.shard.answer_of(each.session) is None]
            assert not self.rivals(asked, others), "it has overtaken an earlier one"
        for session in list(self.waiting):
            if self.owners.shard.answer_of(session) is not None:
                del self.waiting[session]
        if not self.owners.is_due():
            self.check_nobody_waits_in_vain(history)

    def is_before(self, one: Claim, other: Claim) -> bool:
        return int(one.session[1:]) < int(other.session[1:])

    def check_nobody_waits_in_vain(self, history: History) -> None:
        earlier: list[Claim] = []
        for asked in self.waiting.values():
            is_free = all(
                history.owner((asked.group, each.resource)) is None for each in all_wanted(asked)
            )
            assert not is_free or self.rivals(asked, earlier), f"{asked} could be granted"
            earlier.append(asked)

    @rule(seconds=st.sampled_from([1, LEASE_S]))
    def time_passes(self, seconds: int) -> None:
        self.owners.lapse(0)
        self.expire()
        self.owners.runtime.advance(seconds)
        self.expire()

    @rule()
    def the_power_fails(self) -> None:
        self.owners.runtime.crash()
        self.waiting.clear()

    # -- laws -------------------------------------------------------------------------------------

    @invariant()
    def a_complete_grant_is_known_wherever_it_is_enforced(self) -> None:  # O9
        history = self.history()
        for grant in history.grants.values():
            if grant.phase is Phase.HELD and grant.session not in history.ended:
                for place, granted in self.enforced(grant):
                    owner = self.left[place]
                    assert (owner.epoch, owner.session) == (granted.epoch, grant.session)

    def enforced(self, grant: Grant) -> Iterator[tuple[object, Granted]]:
        for each in grant.resources:
            if each.resource == grant.producers_key:
                yield each.resource, each
            elif "/" in each.resource:
                topic, number = each.resource.split("/")
                yield ("log", (topic, int(number)), grant.group), each

    @invariant()
    def an_owner_is_alone_once_its_grant_is_complete(self) -> None:  # O7, O8
        """The work of those before it is done: closed, and all their transactions ended.

        What they had in other partitions, too, is fenced by whoever takes those.
        """
        history = self.history()
        for session in self.settled(history):
            grant = history.grants[session]
            names = {each.resource for each in grant.resources}
            for older in history.grants.values():
                if older.session == session or older.group != grant.group:
                    continue
                shared = [each for each in older.resources if each.resource in names]
                if shared and older.session in history.ended:
                    assert older.session in self.severed
                    for place, granted in self.enforced(older):
                        owner, name = self.left[place], granted.resource
                        is_taken = history.epoch((older.group, name))[1] > granted.epoch
                        if name in names or name == older.producers_key or not is_taken:
                            assert owner.epoch > granted.epoch or not owner.is_live

    def settled(self, history: History) -> list[str]:
        return [
            each.session
            for each in history.grants.values()
            if each.phase is Phase.HELD and each.session not in history.ended
        ]

    def teardown(self) -> None:
        """Left alone, all work is done, everything is free, and nothing is kept of the claims."""
        for _ in range(200):
            self.owners.runtime.commit()
            self.work_all()
            self.owners.runtime.advance(LEASE_S)
            self.expire()
            self.owners.runtime.commit()
            if not self.owners.tasks() and self.owners.shard.next_deadline() is None:
                break
        assert self.owners.tasks() == {}
        assert self.waiting == {}
        history = self.history()
        assert all(not each.is_live for each in self.left.values())
        for grant in history.grants.values():
            for place, granted in self.enforced(grant):
                assert self.left[place].epoch >= granted.epoch
        shard = self.owners.shard
        assert shard._table.grants == {}
        for at in history.newest:
            state = self.owners.states(at[0])[at[1]]
            assert (state.generation, state.epoch) == history.epoch(at)
        self.owners.runtime.crash()

    def work_all(self) -> None:
        for task in self.owners.tasks().values():
            self.carry_out(task)
            self.owners.done(task)


TestOwnership = pytest.mark.slow(Ownership.TestCase)
TestOwnership.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
