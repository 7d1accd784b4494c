"""The coordinator of ownership: rules O1 to O6, O9 and O10.

A claim is decided here; the epochs it raises are enforced by the logs of others, which is
outstanding work until they say so. A claim that ends leaves work, too. A grant is complete once its
own work is done, and that of every ended claim that shares a resource with it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from fencelog.coordination.ownership.leases import Leases
from fencelog.coordination.ownership.model import (
    Claim,
    Limit,
    OwnAnswer,
    OwnershipLimits,
    OwnershipState,
    OwnershipTask,
    ResourceAnswer,
)
from fencelog.coordination.ownership.pages import Pages
from fencelog.coordination.ownership.progress import (
    DECISION_MAX,
    FENCED,
    Progress,
    answers_of,
    bounded,
)
from fencelog.coordination.ownership.records import write_end, write_grant
from fencelog.coordination.ownership.rules import (
    Verdict,
    all_wanted,
    judge,
    next_generation,
    producers_key_of,
)
from fencelog.coordination.ownership.state import Grant, Granted, Phase
from fencelog.coordination.ownership.table import OwnershipTable
from fencelog.coordination.ownership.waiting import Waiter, Waiting
from fencelog.coordination.ownership.work import has_work, live_tasks, owners_of
from fencelog.coordination.shard import Decision, LogRecord
from fencelog.errors import ErrorCode
from fencelog.log.ownership import Owner
from fencelog.types import CoordinatorEpoch, Instant, Offset, TimestampMs, TopicPartition

_AT_ONCE = Instant(0.0)
CHANGES_MAX = 1_000


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
        self._progress = Progress(self._table, self._leases)

    def replay(self, record: LogRecord, offset: Offset, now: Instant) -> None:
        """Apply one record of ``__fencelog_ownership``. Raises CorruptionError on any other."""
        about = self._table.replay(record, offset)
        self._progress.last = offset
        if about is None:
            return
        session = about.session
        known = self._table.grants.get(session)
        if known is None:
            self._progress.unblock(about)
        elif known.phase is Phase.ENDED:
            self._progress.settle(session)
            self._leases.forget(session)
            self._waiting.forget(session)
            self._progress.due.pop(session, None)
            for each in known.resources:
                self._waiting.freed(known.group, each.resource)
        else:
            # Anew once the grant is complete: its claimant, who waits for it, could not renew.
            self._leases.renew(session, known.lease_ms, now)
            if known.phase is Phase.HELD:
                self._progress.held(session)

    # -- what claimants ask ----------------------------------------------------------------------

    def own(self, claim: Claim, now: Instant, wall_ms: TimestampMs) -> Decision[OwnAnswer]:
        """Claim resources, all or none of them (O1 to O6).

        NONE: granted; ``answer_of`` says when the grant is complete. CLAIM_WAITING: queued (O10),
        until its lease is over; each repetition begins that anew.
        A refusal names each refused resource, and its owner as it is. What a request may say at all
        is checked before, where it is read.
        """
        repeated = self._waiting.session_of(claim)
        if repeated is not None:
            return self._repeated(repeated, now)
        verdict = judge(claim, self._table)
        if verdict.error is not ErrorCode.NONE:
            return Decision((), verdict.refusal())
        names = tuple(each.resource for each in all_wanted(claim))
        if not self._has_room(claim.group, names):
            return Decision((), _beyond(Limit.RESOURCES))
        if claim.waits:
            is_queued = any(self._waiting.count(claim.group, name) for name in names)
            if is_queued or verdict.owners:
                return Decision((), self._wait(claim, names, now), moves_deadline=True)
            self._waiting.recognise(claim)
        self._leases.connect(claim.session, claim.connection)
        records = self._grant(claim, verdict, wall_ms)
        return Decision(records, OwnAnswer(error=ErrorCode.NONE, session=claim.session))

    def _has_room(self, group: str | None, names: Iterable[str]) -> bool:
        new = sum(self._table.resource(group, name) is None for name in names)
        return self._table.resource_count + new <= self._limits.resources_max

    def _repeated(self, session: str, now: Instant) -> Decision[OwnAnswer]:
        waiter = self._waiting.waiter(session)
        if waiter is not None:
            self._leases.renew(session, self._lease_ms(waiter.claim), now)
            return Decision((), self._waits(waiter), moves_deadline=True)
        refusal = self._waiting.refusal(session)
        if refusal is not None:
            self._waiting.forget(session)
            self._leases.forget(session)
            return Decision((), refusal)
        # The claimant counts its lease from the sending of this request.
        self._leases.renew(session, self._table.grants[session].lease_ms, now)
        answer = OwnAnswer(error=ErrorCode.NONE, session=session)
        return Decision((), answer, moves_deadline=True)

    def _wait(self, claim: Claim, names: tuple[str, ...], now: Instant) -> OwnAnswer:
        limits, waiting = self._limits, self._waiting
        if len(waiting) >= limits.waiting_max:
            return _beyond(Limit.WAITING)
        if waiting.resource_count + len(names) > limits.waiting_resources_max:
            return _beyond(Limit.WAITING_RESOURCES)
        self._leases.connect(claim.session, claim.connection)
        self._leases.renew(claim.session, self._lease_ms(claim), now)
        return self._waits(waiting.add(claim, names))

    def _lease_ms(self, claim: Claim) -> int:
        return max(self._limits.lease_ms_min, min(claim.lease_ms, self._limits.lease_ms_max))

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
        grant = Grant(
            group=claim.group,
            session=claim.session,
            phase=Phase.GRANTING,
            holder=claim.holder,
            host=claim.host,
            lease_ms=self._lease_ms(claim),
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
            return Decision((), FENCED)
        self._leases.renew(session, grant.lease_ms, now)
        answer = OwnAnswer(error=ErrorCode.NONE, session=session, lease_ms=grant.lease_ms)
        return Decision((), answer, moves_deadline=True)

    def attach(self, group: str | None, session: str, epoch: int) -> Decision[OwnAnswer]:
        """Let another connection act for the claim (O7).

        OWNER_FENCED: the claim has ended, or its grant is not complete, so nobody can know it.
        """
        grant = self._live(group, session, epoch)
        if grant is None or grant.phase is not Phase.HELD:
            return Decision((), FENCED)
        answer = OwnAnswer(error=ErrorCode.NONE, session=session, lease_ms=grant.lease_ms)
        return Decision((), answer)

    def _live(self, group: str | None, session: str, epoch: int) -> Grant | None:
        grant = self._table.grants.get(session)
        if grant is None or grant.phase is Phase.ENDED or self._leases.is_gone(session):
            return None
        return grant if (grant.group, grant.epoch) == (group, epoch) else None

    def release(
        self, group: str | None, session: str, wall_ms: TimestampMs
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
        if grant is None or grant.phase is Phase.ENDED or grant.group != group:
            return Decision((), ())
        answers = tuple(answers_of(grant, _release_error(grant)))
        return Decision(_ends([grant], wall_ms), answers)

    def release_resources(
        self, group: str | None, resources: Sequence[str], wall_ms: TimestampMs
    ) -> Decision[tuple[list[ResourceAnswer], list[str]]]:
        """End the claims that hold these resources, whoever has them; each ends as a whole.

        Answers those of the resources that were held, with CLAIM_IN_PROGRESS if the claim's grant
        is not complete: it goes on. And the rest of them, for another decision: one is bounded.
        """
        owners = {name: self._table.owner(group, name) for name in resources}
        grants = {owner.session: owner for owner in owners.values() if owner is not None}
        now = {grant.session: grant for grant in bounded(grants.values())}
        answers: list[ResourceAnswer] = []
        rest = [name for name, owner in owners.items() if owner and owner.session not in now]
        for grant in now.values():
            every = answers_of(grant, _release_error(grant))
            answers += (each for each in every if each.resource in owners)
        return Decision(_ends(now.values(), wall_ms), (answers, rest))

    # -- what no record says ---------------------------------------------------------------------

    def disconnected(self, connection: int) -> bool:
        """A connection is closed: its claims end, by ``expire``; those that wait are dropped.

        Returns whether a deadline may have moved. A claim whose grant is not complete yet ends as
        soon as it is (O9).
        """
        sessions = self._leases.disconnected(connection)
        for session in sessions:
            self._waiting.forget(session)
            self._silent(session)
        return bool(sessions)

    def _silent(self, session: str) -> None:
        """Nobody speaks for a claim any more: it is to end, or loses its place or its refusal."""
        if session in self._table.grants:
            self._progress.gone(session)
        else:
            self._waiting.forget(session)
            self._leases.forget(session)

    def paused(self, seconds: float) -> bool:
        """The broker stood still for so long: every lease ends so much later (O10)."""
        self._leases.paused(seconds)
        return True

    # -- deadlines -------------------------------------------------------------------------------

    def next_deadline(self) -> Instant | None:
        """When the first lease ends; at once where a claim has to end, complete or be granted."""
        if self._progress.is_due() or self._waiting.candidates:
            return _AT_ONCE
        return self._leases.next_due()

    def expire(self, now: Instant, wall_ms: TimestampMs) -> Decision[None]:
        """End the claims whose leases or connections have ended; complete and grant others.

        One that waits is forgotten when its lease is over: nobody has repeated it.

        Call ``take_settled`` afterwards: a claim that waited may be refused without a record.
        """
        for session in self._leases.expire(now):
            self._silent(session)
        records = self._progress.due_records(wall_ms)
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
            self._progress.settle(claim.session)
            return ()
        self._waiting.remove(waiter)
        return self._grant(claim, verdict, wall_ms)

    # -- outstanding work ------------------------------------------------------------------------

    def outstanding(self, committed: Offset) -> Iterator[str]:
        """Yield the claims with work, decided below ``committed``, the high watermark (rule E16).

        They come in the order of their decisions. Do not replay a record meanwhile.
        """
        return self._progress.outstanding(committed)

    def task(self, session: str) -> OwnershipTask | None:
        """The work of a claim; None if it has none.

        Ask in the step in which ``outstanding`` has named it: later it may have ended, and its work
        may be that of a decision that is not committed.
        """
        return self._progress.task(session)

    def owners(
        self, committed: Offset, names: Collection[TopicPartition]
    ) -> Iterator[tuple[TopicPartition, Owner]]:
        """The live owners of these partitions: of new ones no log knows them."""
        return owners_of(self._table, committed, names)

    def live(self, committed: Offset) -> Iterator[OwnershipTask]:
        """The work of each live claim, also if it is done: repeating it does no harm."""
        return live_tasks(self._table, committed)

    def done(
        self,
        session: str,
        fence_offsets: Mapping[TopicPartition, Offset],
        wall_ms: TimestampMs,
        *,
        is_live: bool,
    ) -> Decision[None]:
        """The work of a task is done and committed; repeats are harmless.

        ``fence_offsets``: where a grant stands in the log of each of its partitions. ``is_live`` is
        the task's: a late report of a grant is not taken for one of its end.
        """
        records = self._progress.done(session, fence_offsets, wall_ms, is_live=is_live)
        return Decision(records, None)

    def give_up(self, session: str, refused: Mapping[TopicPartition, ErrorCode]) -> None:
        """Partitions refuse this claim: it ends as soon as its grant is complete.

        That is its answer, then.
        """
        self._leases.give_up(session)
        self._progress.give_up(session, refused)

    def place_of(self, session: str) -> OwnAnswer | None:
        """The answer to a claim that waits; None if it does not. It is no repetition."""
        waiter = self._waiting.waiter(session)
        return None if waiter is None else self._waits(waiter)

    def answer_of(self, session: str) -> OwnAnswer | None:
        """The final answer to a claim; None while it waits or its grant is not complete.

        OWNER_FENCED: it has ended, or has lost its place. To be sent only if ``take_settled`` has
        named it (E16).
        """
        if self._waiting.waiter(session) is not None:
            return None
        return self._waiting.refusal(session) or self._progress.answer_of(session)

    def take_settled(self, committed: Offset) -> list[str]:
        """Sessions whose ``answer_of`` has become final by records below ``committed``, once."""
        return self._progress.take_settled(committed)

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
        whether more follow.
        """
        return self._pages.describe(group, resources, after, limit)

    def describe_all(
        self, after: tuple[str | None, str] | None, limit: int
    ) -> tuple[list[OwnershipState], bool]:
        """A page of the resources of all groups, by group (null first) and name."""
        return self._pages.describe_all(after, limit)

    def revision(self, group: str | None) -> int:
        """The offset of the last record about a group; -1 without one."""
        return self._pages.revision(group)

    def changes(
        self,
        group: str | None,
        resources: Sequence[str] | None,
        seen_revision: int,
        limit: int = CHANGES_MAX,
    ) -> tuple[int, list[OwnershipState]]:
        """What has changed in a group after a revision, by name, and its revision now.

        Of more than ``limit`` changes of a whole group the oldest are looked at, and the revision
        is that of the last of them: ask again from there, also if none of them is left. What one
        record has changed is never parted.
        """
        return self._pages.changes(group, resources, seen_revision, limit)


def _beyond(limit: Limit) -> OwnAnswer:
    return OwnAnswer(error=ErrorCode.POLICY_VIOLATION, limit=limit)


def _release_error(grant: Grant) -> ErrorCode:
    return ErrorCode.NONE if grant.phase is Phase.HELD else ErrorCode.CLAIM_IN_PROGRESS


def _ends(grants: Iterable[Grant], wall_ms: TimestampMs) -> tuple[LogRecord, ...]:
    """End those whose grants are complete."""
    return tuple(write_end(grant, wall_ms) for grant in grants if grant.phase is Phase.HELD)
