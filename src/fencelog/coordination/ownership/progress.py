"""Claims on their way: their outstanding work, what it completes, and answers that are final.

Soft state beside the table, whose records it reads: a load knows none of it, so all outstanding
work is done again.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from fencelog.coordination.ownership.leases import Leases
from fencelog.coordination.ownership.model import (
    NEXT_GENERATION,
    NO_EPOCH,
    NO_FENCE,
    OwnAnswer,
    OwnershipTask,
    ResourceAnswer,
)
from fencelog.coordination.ownership.records import (
    forget,
    write_end,
    write_grant,
    write_resource,
)
from fencelog.coordination.ownership.resources import partition_of
from fencelog.coordination.ownership.state import Grant, Granted, Phase
from fencelog.coordination.ownership.table import OwnershipTable
from fencelog.coordination.ownership.work import task_of, transactional_id_of
from fencelog.coordination.shard import LogRecord
from fencelog.errors import ErrorCode
from fencelog.types import Offset, TimestampMs, TopicPartition

FENCED = OwnAnswer(error=ErrorCode.OWNER_FENCED)
_NOTHING_REPLAYED = Offset(-1)
DECISION_MAX = 1_000
"""Resources of the claims that one decision ends, completes or grants; the last may exceed it."""


class Progress:
    """What is known of the claims of a shard since the load and no record says."""

    def __init__(self, table: OwnershipTable, leases: Leases) -> None:
        """Read these; change neither."""
        self._table = table
        self._leases = leases
        self.last = _NOTHING_REPLAYED
        """The offset of the last record."""
        self.due: dict[str, None] = {}
        """Claims to end: their claimants are gone."""
        self._worked: dict[str, Grant] = {}
        """Grants whose own work is done, with their fences; they wait for ended claims' work."""
        self.unblocked: dict[str, None] = {}
        """Those of them that may be complete."""
        self._refusals: dict[str, OwnAnswer] = {}
        """The answers to claims that were granted, but not by all partitions."""
        self._settled: deque[tuple[Offset, str]] = deque()
        """Sessions whose answers became final, with the last offset that the answer knows of."""

    # -- noted as records are replayed -----------------------------------------------------------

    def settle(self, session: str) -> None:
        """The answer to a claim is final; somebody may wait for it."""
        if self._leases.knows(session):
            self._settled.append((self.last, session))

    def held(self, session: str) -> None:
        """A grant is complete."""
        self._worked.pop(session, None)
        self.unblocked.pop(session, None)
        self.settle(session)

    def gone(self, session: str) -> None:
        """A claimant is gone: its claim is to end, once its grant is complete (O9)."""
        grant = self._table.grants.get(session)
        if grant is not None and grant.phase is Phase.HELD:
            self.due[session] = None

    def unblock(self, forgotten: Grant) -> None:
        """A claim is forgotten; grants that waited for its work may be complete now."""
        self._refusals.pop(forgotten.session, None)
        for each in forgotten.resources:
            owner = self._table.owner(forgotten.group, each.resource)
            if owner is not None and owner.session in self._worked:
                self.unblocked[owner.session] = None

    def give_up(self, session: str, refused: Mapping[TopicPartition, ErrorCode]) -> None:
        """Note how a claim is answered once it has ended, as ``OwnershipShard.give_up`` says."""
        grant = self._table.grants.get(session)
        if grant is None:
            return
        resources = tuple(
            ResourceAnswer(
                resource=each.resource,
                error=refused[partition],
                generation=NEXT_GENERATION,
                epoch=NO_EPOCH,
            )
            for each in grant.resources
            if (partition := partition_of(each.resource)) is not None and partition in refused
        )
        self._refusals[session] = OwnAnswer(error=resources[0].error, resources=resources)

    # -- work ------------------------------------------------------------------------------------

    def outstanding(self, committed: Offset) -> Iterator[str]:
        """Yield the claims with work, as ``OwnershipShard.outstanding`` says."""
        for session, at in self._table.decided_at.items():
            if at < committed and session not in self._worked:
                yield session

    def task(self, session: str) -> OwnershipTask | None:
        """The work of a claim, as ``OwnershipShard.task`` says."""
        if session not in self._table.decided_at or session in self._worked:
            return None
        return task_of(self._table.grants[session], self._table)

    def done(
        self,
        session: str,
        fence_offsets: Mapping[TopicPartition, Offset],
        wall_ms: TimestampMs,
        *,
        is_live: bool,
    ) -> tuple[LogRecord, ...]:
        """The records of work that is done, as ``OwnershipShard.done`` says."""
        grant = self._table.grants.get(session)
        if grant is None:
            return ()
        if not is_live:
            return self._forgotten(grant) if grant.phase is Phase.ENDED else ()
        if grant.phase is not Phase.GRANTING:
            return ()
        fenced = replace(
            grant,
            resources=tuple(_with_fence_offset(each, fence_offsets) for each in grant.resources),
        )
        if any(self._table.blockers(grant)):
            self._worked[session] = fenced
            return ()
        return self._completed(fenced, wall_ms)

    def is_due(self) -> bool:
        """Whether claims are to end, or may be complete."""
        return bool(self.due or self.unblocked)

    def due_records(self, wall_ms: TimestampMs) -> list[LogRecord]:
        """The records of claims whose claimants are gone, and of grants that wait no more."""
        gone = (self._table.grants[session] for session in self.due)
        records = [write_end(grant, wall_ms) for grant in bounded(gone)]
        for grant in list(bounded(self._table.grants[session] for session in self.unblocked)):
            del self.unblocked[grant.session]
            fenced = self._worked.get(grant.session)
            if fenced is not None and not any(self._table.blockers(grant)):
                records += self._completed(fenced, wall_ms)
        return records

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

    # -- answers ---------------------------------------------------------------------------------

    def answer_of(self, session: str) -> OwnAnswer | None:
        """The final answer to a claim that does not wait; None while its grant is not complete."""
        grant = self._table.grants.get(session)
        if grant is None or grant.phase is Phase.ENDED:
            return self._refusals.get(session, FENCED)
        if grant.phase is Phase.GRANTING:
            return None
        return OwnAnswer(
            error=ErrorCode.NONE,
            session=session,
            lease_ms=grant.lease_ms,
            transactional_id=transactional_id_of(grant),
            resources=tuple(answers_of(grant, ErrorCode.NONE)),
        )

    def take_settled(self, committed: Offset) -> list[str]:
        """Sessions whose answers became final, as ``OwnershipShard.take_settled`` says."""
        sessions: dict[str, None] = {}
        while self._settled and self._settled[0][0] < committed:
            sessions[self._settled.popleft()[1]] = None
        return list(sessions)


def bounded(grants: Iterable[Grant]) -> Iterator[Grant]:
    """Yield as many claims as one decision may be about, one at least."""
    count = 0
    for grant in grants:
        yield grant
        count += len(grant.resources)
        if count >= DECISION_MAX:
            return


def answers_of(grant: Grant, error: ErrorCode) -> Iterator[ResourceAnswer]:
    """Yield what a claimant named, as it was granted, with an error."""
    for each in grant.wanted:
        yield ResourceAnswer(
            resource=each.resource,
            error=error,
            generation=each.generation,
            epoch=each.epoch,
            fence_offset=each.fence_offset,
        )


def _with_fence_offset(granted: Granted, fence_offsets: Mapping[TopicPartition, Offset]) -> Granted:
    partition = partition_of(granted.resource)
    if partition is None:
        return granted
    return granted._replace(fence_offset=fence_offsets.get(partition, NO_FENCE))
