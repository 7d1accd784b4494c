"""A model of the ownership shards: what their logs give, record by record (O1 to O9)."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from fencelog.coordination.ownership.records import (
    ClaimKey,
    EndKey,
    ResourceKey,
    read_grant,
    read_key,
    read_resource,
)
from fencelog.coordination.ownership.state import Grant, Phase
from fencelog.coordination.shard import LogRecord

Place = tuple[str | None, str]
"""A group and a resource."""


@dataclass
class Grants:
    """The sessions that all shards have granted; a crash takes none of them back."""

    claims: set[str] = field(default_factory=set)
    takeovers: set[str] = field(default_factory=set)
    """Those that were granted what another claim had before."""
    preemptions: set[str] = field(default_factory=set)
    """Those of them that ended a live owner."""


@dataclass
class OwnershipView:
    """One partition of ``__fencelog_ownership``."""

    counts: Grants
    epochs: dict[Place, int] = field(default_factory=dict)
    """The epoch of the last grant."""
    owners: dict[Place, str] = field(default_factory=dict)
    """The session of the last grant, while it lives."""
    grants: dict[str, Grant] = field(default_factory=dict)
    _severed_at: int = -1
    """The offset of the last record that ended a claim."""

    def take(self, record: LogRecord, offset: int) -> Iterator[str]:
        """Apply a record; yields its violations."""
        match read_key(record.key):
            case ClaimKey(_, session) if record.value is None:
                known = self.grants.pop(session, None)
                if known is not None and known.phase is not Phase.ENDED:
                    yield f"claim {session} is forgotten, though it lives (O3)"
            case ClaimKey() as key:
                assert record.value is not None
                yield from self._claim(read_grant(key, record.value), offset)
            case EndKey(_, session):
                if record.value is not None:
                    yield from self._end(session, offset)
            case ResourceKey(group, name):
                if record.value is not None:
                    _, epoch = read_resource(record.value)
                    known_epoch = self.epochs.setdefault((group, name), epoch)
                    if epoch > known_epoch:
                        yield f"{name} of group {group} is kept at {epoch}, not {known_epoch} (O3)"

    def _claim(self, grant: Grant, offset: int) -> Iterator[str]:
        known = self.grants.get(grant.session)
        self.grants[grant.session] = grant
        if known is not None:
            if known.phase is not Phase.GRANTING or grant.phase is not Phase.HELD:
                yield (
                    f"claim {grant.session} goes from {known.phase.value} "
                    f"to {grant.phase.value} (O9)"
                )
            return
        before = [self.epochs.get((grant.group, each.resource), 0) for each in grant.resources]
        self.counts.claims.add(grant.session)
        if any(before):
            self.counts.takeovers.add(grant.session)
        if self._severed_at == offset - 1:
            self.counts.preemptions.add(grant.session)
        for each, epoch in zip(grant.resources, before, strict=True):
            place = grant.group, each.resource
            if each.epoch != epoch + 1:
                yield f"{each.resource} is granted with epoch {each.epoch} after {epoch} (O3)"
            if place in self.owners:
                yield (
                    f"{each.resource} is granted to {grant.session}, though "
                    f"{self.owners[place]} lives (O1)"
                )
            self.epochs[place] = max(epoch, each.epoch)
            self.owners[place] = grant.session

    def _end(self, session: str, offset: int) -> Iterator[str]:
        known = self.grants.get(session)
        if known is None or known.phase is Phase.ENDED:
            yield f"claim {session} ends, which does not live (O8)"
            return
        self._severed_at = offset
        self.grants[session] = replace(known, phase=Phase.ENDED)
        for each in known.resources:
            if self.owners.get((known.group, each.resource)) == session:
                del self.owners[known.group, each.resource]
