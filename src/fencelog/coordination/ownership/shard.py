"""The coordinator of ownership: rules O1 to O6, O9 and O10.

A claim is decided here; the epochs it raises are enforced by the logs of others, which is
outstanding work until they say so. A claim that ends leaves work, too. A grant is complete once its
own work is done, and that of every ended claim that shares a resource with it.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from fencelog.coordination.ownership.leases import Leases
from fencelog.coordination.ownership.model import (
    NO_FENCE,
    Claim,
    Limit,
    OwnAnswer,
    OwnershipLimits,
    OwnershipState,
    OwnershipTask,
    ResourceAnswer,
)
from fencelog.coordination.ownership.pages import Pages
from fencelog.coordination.ownership.records import (
    forget,
    write_end,
    write_grant,
    write_resource,
)
from fencelog.coordination.ownership.resources import partition_of
from fencelog.coordination.ownership.rules import (
    Verdict,
    all_wanted,
    judge,
    next_generation,
    producers_key_of,
    validate,
)
from fencelog.coordination.ownership.state import Grant, Granted, Phase
from fencelog.coordination.ownership.table import OwnershipTable
from fencelog.coordination.ownership.waiting import Waiter, Waiting
from fencelog.coordination.ownership.work import has_work, task_of, transactional_id_of
from fencelog.coordination.shard import Decision, LogRecord
from fencelog.errors import ErrorCode
from fencelog.types import CoordinatorEpoch, Instant, Offset, TimestampMs, TopicPartition

_AT_ONCE = Instant(0.0)
_NOTHING_REPLAYED = Offset(-1)
_FENCED = OwnAnswer(error=ErrorCode.OWNER_FENCED)
CHANGES_MAX = 1_000
DECISION_MAX = 1_000
"""How many claims one decision ends, and how many resources it grants, when many are due."""


class OwnershipShard:
    """The groups of one partition of ``__fencelog_ownership``."""

    def __init__(
        self, coordinator_epoch: CoordinatorEpoch, limits: OwnershipLimits | None = None
    ) -> None:
        """Begin empty, for the log to be replayed."""
        self.coordinator_epoch = coordinator_epoch
        self._limits = limits or OwnershipLimits()
        self._table = OwnershipTable()
        self._leases = Leases()
        self._waiting = Waiting()
        self._pages = Pages(self._table, self._waiting.count)
        self._progress = _Progress()

    def replay(self, record: LogRecord, offset: Offset, now: Instant) -> None:
        """Apply one record of ``__fencelog_ownership``. Raises CorruptionError on any other."""
        about = self._table.replay(record, offset)
        self._progress.last = offset
        if about is None:
            return
        session = about.session
        known = self._table.grants.get(session)
        if known is None:
            self._unblock(about)
        elif known.phase is Phase.ENDED:
            self._settle(session)
            self._leases.forget(session)
            self._waiting.forget(session)
            self._progress.due.pop(session, None)
            for each in known.resources:
                self._waiting.freed(known.group, each.resource)
        else:
            self._leases.start(session, known.lease_ms, now)
            if known.phase is Phase.HELD:
                self._progress.worked.pop(session, None)
                self._settle(session)

    def _settle(self, session: str) -> None:
        """Note that the answer to a claim is final, if one may be waiting for it."""
        if self._leases.knows(session):
            self._progress.settled.append((self._progress.last, session))

    def _unblock(self, forgotten: Grant) -> None:
        """Grants that waited for the work of an ended claim may be complete now."""
        for each in forgotten.resources:
            owner = self._table.owner(forgotten.group, each.resource)
            if owner is not None and owner.session in self._progress.worked:
                self._progress.unblocked[owner.session] = None

    # -- what claimants ask ----------------------------------------------------------------------

    def own(self, claim: Claim, now: Instant, wall_ms: TimestampMs) -> Decision[OwnAnswer]:
        """Claim resources, all or none of them (O1 to O6).

        NONE: granted; ``answer_of`` says when the grant is complete. CLAIM_WAITING: queued (O10).
        A refusal names each refused resource, and its owner as it is.
        """
        repeated = self._waiting.session_of(claim)
        if repeated is not None:
            return Decision((), self._repeated(repeated))
        error = validate(claim, self._limits)
        if error is not ErrorCode.NONE:
            return Decision((), OwnAnswer(error=error))
        verdict = judge(claim, self._table)
        if verdict.error is not ErrorCode.NONE:
            return Decision((), verdict.refusal())
        names = tuple(each.resource for each in all_wanted(claim))
        if not self._has_room(claim.group, names):
            return Decision((), _beyond(Limit.RESOURCES))
        if claim.waits:
            is_queued = any(self._waiting.count(claim.group, name) for name in names)
            if is_queued or verdict.owners:
                return Decision((), self._wait(claim, names))
            self._waiting.follow(claim)
        self._leases.connect(claim.session, claim.connection)
        records = self._grant(claim, verdict, wall_ms)
        return Decision(records, OwnAnswer(error=ErrorCode.NONE, session=claim.session))

    def _has_room(self, group: str | None, names: Iterable[str]) -> bool:
        new = sum(self._table.resource(group, name) is None for name in names)
        return self._table.resource_count + new <= self._limits.resources_max

    def _repeated(self, session: str) -> OwnAnswer:
        waiter = self._waiting.waiter(session)
        if waiter is not None:
            return self._waits(waiter)
        refusal = self._waiting.refusal(session)
        if refusal is not None:
            self._waiting.forget(session)
            self._leases.forget(session)
            return refusal
        return OwnAnswer(error=ErrorCode.NONE, session=session)

    def _wait(self, claim: Claim, names: tuple[str, ...]) -> OwnAnswer:
        limits, waiting = self._limits, self._waiting
        if len(waiting) >= limits.waiting_max:
            return _beyond(Limit.WAITING)
        if waiting.resource_count + len(names) > limits.waiting_resources_max:
            return _beyond(Limit.WAITING_RESOURCES)
        self._leases.connect(claim.session, claim.connection)
        return self._waits(waiting.add(claim, names))

    def _waits(self, waiter: Waiter) -> OwnAnswer:
        return OwnAnswer(
            error=ErrorCode.CLAIM_WAITING,
            session=waiter.claim.session,
            place=self._waiting.place(waiter),
        )

    def _grant(self, claim: Claim, verdict: Verdict, wall_ms: TimestampMs) -> tuple[LogRecord, ...]:
        """End the owners that are severed, then grant the claim by one record."""
        assert claim.session not in self._table.grants, claim.session
        resources: list[Granted] = []
        for wanted in all_wanted(claim):
            known = self._table.resource(claim.group, wanted.resource)
            epoch = 0 if known is None else known.epoch
            resources.append(Granted(wanted.resource, next_generation(wanted, known), epoch + 1))
        lease_ms = max(self._limits.lease_ms_min, min(claim.lease_ms, self._limits.lease_ms_max))
        grant = Grant(
            group=claim.group,
            session=claim.session,
            phase=Phase.GRANTING,
            holder=claim.holder,
            host=claim.host,
            lease_ms=lease_ms,
            granted_ms=wall_ms,
            producers_key=producers_key_of(claim),
            resources=tuple(resources),
        )
        if not verdict.owners and not has_work(grant, self._table):
            grant = replace(grant, phase=Phase.HELD)
        ends = (write_end(owner, wall_ms) for owner in verdict.owners)
        return (*ends, write_grant(grant))

    def renew(
        self, group: str | None, session: str, epoch: int, now: Instant
    ) -> Decision[OwnAnswer]:
        """Begin the claim's lease anew (O10). OWNER_FENCED: the claim has ended.

        No record says it, because a load begins the lease anew, too.
        """
        grant = self._live(group, session, epoch)
        if grant is None:
            return Decision((), _FENCED)
        self._leases.renew(session, grant.lease_ms, now)
        answer = OwnAnswer(error=ErrorCode.NONE, session=session, lease_ms=grant.lease_ms)
        return Decision((), answer, moves_deadline=True)

    def attach(self, group: str | None, session: str, epoch: int) -> Decision[OwnAnswer]:
        """Let another connection act for the claim (O7).

        OWNER_FENCED: the claim has ended, or its grant is not complete, so nobody can know it.
        """
        grant = self._live(group, session, epoch)
        if grant is None or grant.phase is not Phase.HELD:
            return Decision((), _FENCED)
        answer = OwnAnswer(error=ErrorCode.NONE, session=session, lease_ms=grant.lease_ms)
        return Decision((), answer)

    def _live(self, group: str | None, session: str, epoch: int) -> Grant | None:
        grant = self._table.grants.get(session)
        if grant is None or grant.phase is Phase.ENDED or self._leases.is_gone(session):
            return None
        return grant if (grant.group, grant.epoch) == (group, epoch) else None

    def release(
        self, group: str | None, session: str, now: Instant, wall_ms: TimestampMs
    ) -> Decision[tuple[ResourceAnswer, ...]]:
        """End a claim; the answer is what it held. Repeating it ends nothing more.

        CLAIM_IN_PROGRESS for each resource if its grant is not complete.
        """
        waiter = self._waiting.waiter(session)
        if waiter is not None and waiter.claim.group == group:
            self._waiting.forget(session)
            self._leases.forget(session)
            return Decision((), (), moves_deadline=True)
        grant = self._table.grants.get(session)
        if grant is None or grant.group != group:
            return Decision((), ())
        return self._released([grant], wall_ms)

    def release_resources(
        self,
        group: str | None,
        resources: Sequence[str],
        now: Instant,
        wall_ms: TimestampMs,
    ) -> Decision[tuple[ResourceAnswer, ...]]:
        """End the claims that hold these resources, whoever has them; answer all they held.

        CLAIM_IN_PROGRESS for those of a claim whose grant is not complete: it goes on.
        """
        owners = (self._table.owner(group, name) for name in resources)
        grants = {owner.session: owner for owner in owners if owner is not None}
        return self._released(grants.values(), wall_ms)

    def _released(
        self, grants: Iterable[Grant], wall_ms: TimestampMs
    ) -> Decision[tuple[ResourceAnswer, ...]]:
        records: list[LogRecord] = []
        answers: list[ResourceAnswer] = []
        for grant in grants:
            if grant.phase is Phase.ENDED:
                continue
            is_held = grant.phase is Phase.HELD
            error = ErrorCode.NONE if is_held else ErrorCode.CLAIM_IN_PROGRESS
            answers += _answers(grant, error)
            if is_held:
                records.append(write_end(grant, wall_ms))
        return Decision(tuple(records), tuple(answers))

    # -- what no record says ---------------------------------------------------------------------

    def disconnected(self, connection: int, now: Instant) -> bool:
        """A connection is closed: its claims end, by ``expire``; those that wait are dropped.

        Returns whether a deadline may have moved. A claim whose grant is not complete yet ends as
        soon as it is (O9).
        """
        sessions = self._leases.disconnected(connection)
        for session in sessions:
            self._waiting.forget(session)
            self._gone(session)
        return bool(sessions)

    def _gone(self, session: str) -> None:
        grant = self._table.grants.get(session)
        if grant is not None and grant.phase is Phase.HELD:
            self._progress.due[session] = None

    def paused(self, seconds: float) -> bool:
        """The broker stood still for so long: every lease ends so much later (O10)."""
        self._leases.paused(seconds)
        return True

    # -- deadlines -------------------------------------------------------------------------------

    def next_deadline(self) -> Instant | None:
        """When the first lease ends; at once where a claim has to end, complete or be granted."""
        progress = self._progress
        if progress.due or progress.unblocked or self._waiting.candidates:
            return _AT_ONCE
        return self._leases.next_due()

    def expire(self, now: Instant, wall_ms: TimestampMs) -> Decision[None]:
        """End the claims whose leases or connections have ended; complete and grant others.

        Call ``take_settled`` afterwards: a claim that waited may be refused without a record.
        """
        for session in self._leases.expire(now):
            self._gone(session)
        due = islice(self._progress.due, DECISION_MAX)
        records = [write_end(self._table.grants[session], wall_ms) for session in due]
        for session in tuple(self._progress.unblocked):
            del self._progress.unblocked[session]
            grant = self._progress.worked.get(session)
            if grant is not None and not any(self._table.blockers(grant)):
                records += self._completed(grant, wall_ms)
        for waiter in self._waiting.take_candidates(DECISION_MAX):
            records += self._grant_waiter(waiter, wall_ms)
        return Decision(tuple(records), None)

    def _grant_waiter(self, waiter: Waiter, wall_ms: TimestampMs) -> tuple[LogRecord, ...]:
        """Grant a claim that is the first in its queues, if its resources are free."""
        claim = waiter.claim
        verdict = judge(claim, self._table)
        answer: OwnAnswer | None = None
        if verdict.error is not ErrorCode.NONE:
            answer = verdict.refusal()
        elif verdict.owners:
            return ()
        elif not self._has_room(claim.group, waiter.names):
            answer = _beyond(Limit.RESOURCES)
        if answer is not None:
            self._waiting.refuse(waiter, answer)
            self._settle(claim.session)
            return ()
        self._waiting.remove(waiter)
        return self._grant(claim, verdict, wall_ms)

    # -- outstanding work ------------------------------------------------------------------------

    def outstanding(self, committed: Offset) -> Iterator[str]:
        """Yield the claims with work, decided below ``committed``, the high watermark (rule E16).

        They come in the order of their decisions. Do not replay a record meanwhile.
        """
        for session, at in self._table.decided_at.items():
            if at < committed and session not in self._progress.worked:
                yield session

    def task(self, session: str) -> OwnershipTask | None:
        """The work of a claim; None if it has none.

        Ask in the step in which ``outstanding`` has named it: later it may have ended, and its work
        may be that of a decision that is not committed.
        """
        if session not in self._table.decided_at or session in self._progress.worked:
            return None
        return task_of(self._table.grants[session], self._table)

    def done(
        self,
        session: str,
        fence_offsets: Mapping[TopicPartition, Offset],
        now: Instant,
        wall_ms: TimestampMs,
        *,
        is_live: bool,
    ) -> Decision[None]:
        """The work of a task is done and committed; repeats are harmless.

        ``fence_offsets``: where a grant stands in the log of each of its partitions. ``is_live`` is
        the task's: a late report of a grant is not taken for one of its end.
        """
        grant = self._table.grants.get(session)
        if grant is None:
            return Decision((), None)
        if not is_live:
            return Decision(self._forgotten(grant) if grant.phase is Phase.ENDED else (), None)
        if grant.phase is not Phase.GRANTING:
            return Decision((), None)
        fenced = replace(
            grant, resources=tuple(_fenced(each, fence_offsets) for each in grant.resources)
        )
        if any(self._table.blockers(grant)):
            self._progress.worked[session] = fenced
            return Decision((), None)
        return Decision(self._completed(fenced, wall_ms), None)

    def give_up(self, session: str) -> None:
        """A partition refuses this claim for good: it ends as soon as its grant is complete."""
        self._leases.give_up(session)

    def _completed(self, fenced: Grant, wall_ms: TimestampMs) -> tuple[LogRecord, ...]:
        """The records of a grant that is complete; it ends at once if its claimant is gone (O9)."""
        held = write_grant(replace(fenced, phase=Phase.HELD))
        if self._leases.is_gone(fenced.session):
            return held, write_end(fenced, wall_ms)
        return (held,)

    def _forgotten(self, ended: Grant) -> tuple[LogRecord, ...]:
        """Remove a claim; what no newer one has taken keeps its numbers in a record (O3, O4)."""
        kept = (
            write_resource(ended.group, each)
            for each in ended.resources
            if self._table.is_newest(ended, each.resource)
        )
        return (*kept, *forget(ended))

    def answer_of(self, session: str) -> OwnAnswer | None:
        """The final answer to a claim; None while it waits or its grant is not complete.

        OWNER_FENCED: it has ended. To be sent only if ``take_settled`` has named it (E16).
        """
        if self._waiting.waiter(session) is not None:
            return None
        refusal = self._waiting.refusal(session)
        if refusal is not None:
            return refusal
        grant = self._table.grants.get(session)
        if grant is None or grant.phase is Phase.ENDED:
            return _FENCED
        if grant.phase is Phase.GRANTING:
            return None
        return OwnAnswer(
            error=ErrorCode.NONE,
            session=session,
            lease_ms=grant.lease_ms,
            transactional_id=transactional_id_of(grant),
            resources=tuple(_answers(grant, ErrorCode.NONE)),
        )

    def take_settled(self, committed: Offset) -> list[str]:
        """Sessions whose ``answer_of`` has become final by records below ``committed``, once."""
        settled = self._progress.settled
        sessions: dict[str, None] = {}
        while settled and settled[0][0] < committed:
            sessions[settled.popleft()[1]] = None
        return list(sessions)

    def is_live(self, session: str) -> bool:
        """Whether the claim was granted and has not ended."""
        grant = self._table.grants.get(session)
        return grant is not None and grant.phase is not Phase.ENDED

    # -- what operators and watchers ask ---------------------------------------------------------

    def describe(
        self, group: str | None, resources: Sequence[str] | None, after: str | None, limit: int
    ) -> tuple[int, list[OwnershipState], bool]:
        """A page of a group's resources that were ever claimed, by name; None: of all of them.

        ``after``: the last name of the page before. Returns the group's revision, the page, and
        whether more follow. The revision is the offset of the last record about the group.
        """
        return self._pages.describe(group, resources, after, limit)

    def describe_all(
        self, after: tuple[str | None, str] | None, limit: int
    ) -> tuple[list[OwnershipState], bool]:
        """A page of the resources of all groups, by group (null first) and name."""
        return self._pages.describe_all(after, limit)

    def changes(
        self,
        group: str | None,
        resources: Sequence[str] | None,
        seen_revision: int,
        limit: int = CHANGES_MAX,
    ) -> tuple[int, list[OwnershipState]]:
        """What has changed in a group after a revision, by name, and its revision now.

        Of more than ``limit`` changes those of the oldest records are returned, with the revision
        of the last of them: ask again from there. What one record has changed is never parted.
        """
        return self._pages.changes(group, resources, seen_revision, limit)


class _Progress:
    """Soft state of claims on their way: what is known since the load and no record says."""

    def __init__(self) -> None:
        self.last = _NOTHING_REPLAYED
        self.due: dict[str, None] = {}
        """Claims to end: their claimants are gone."""
        self.worked: dict[str, Grant] = {}
        """Grants whose own work is done, with their fences; they wait for ended claims' work."""
        self.unblocked: dict[str, None] = {}
        """Those of them that may be complete."""
        self.settled: deque[tuple[Offset, str]] = deque()
        """Sessions whose answers became final, with the last offset that the answer knows of."""


def _beyond(limit: Limit) -> OwnAnswer:
    return OwnAnswer(error=ErrorCode.POLICY_VIOLATION, limit=limit)


def _answers(grant: Grant, error: ErrorCode) -> Iterable[ResourceAnswer]:
    for each in grant.wanted:
        yield ResourceAnswer(
            resource=each.resource,
            error=error,
            generation=each.generation,
            epoch=each.epoch,
            fence_offset=each.fence_offset,
        )


def _fenced(granted: Granted, fence_offsets: Mapping[TopicPartition, Offset]) -> Granted:
    partition = partition_of(granted.resource)
    if partition is None:
        return granted
    return granted._replace(fence_offset=fence_offsets.get(partition, NO_FENCE))
