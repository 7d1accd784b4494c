"""Who owns a partition, as its own log says it, and what follows for a new grant (O8, O9)."""

import sys
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import NamedTuple

from fencelog.errors import ErrorCode
from fencelog.log.values import Appended, Rejected
from fencelog.types import Offset
from fencelog.wire.control import OwnershipRecord
from fencelog.wire.own import owned_key_of

GROUPS_MAX = 1_000
"""Groups with an owner that one partition knows: each segment begins with all of them."""


class Owner(NamedTuple):
    """The content of an ownership record: the last grant in one group, or its end.

    Attributes:
        group: the group whose reader it is; None: the owner of the partition's writes.
        epoch: the fencing token of the grant (O3).
        session: the session of the claim; requests of connections attached to it are the owner's.
        transactional_id: a producer with this id writes for the owner; None if there is none.
        holder: the name that refusals show.
        is_live: whether the claim still holds it; False once it was released or its owner died.
    """

    group: str | None
    epoch: int
    session: str
    transactional_id: str | None
    holder: str
    is_live: bool

    def follows(self, known: "Owner | None") -> bool:
        """Whether it is news: a later grant than the known one, or the end of that one.

        A grant does not follow its own end, so a late repeat revives nobody.
        """
        if known is None or self.epoch > known.epoch:
            return True
        is_same = (self.epoch, self.session) == (known.epoch, known.session)
        return is_same and known.is_live and not self.is_live

    def has_ended(self, transactional_id: str | None) -> bool:
        """Whether the id is that of an earlier claim of its name, or its own and it has ended."""
        if transactional_id is None or self.transactional_id is None:
            return False
        asked, current = owned_key_of(transactional_id), owned_key_of(self.transactional_id)
        if asked is None or current is None or asked[0] != current[0]:
            return False
        return 0 <= asked[1] < current[1] + (not self.is_live)


class StoredOwner(NamedTuple):
    """The newest ownership record of one group."""

    owner: Owner
    offset: Offset
    """Where it was written first: the fence offset of a grant (O9)."""
    newest: Offset
    """Where its newest copy is."""
    size: int
    """Bytes of that batch."""

    def record(self) -> OwnershipRecord:
        """Return what is written of it."""
        return OwnershipRecord(*self.owner, self.offset)


class Owners:
    """The newest ownership record of each group, in one log."""

    __slots__ = ("_by_group", "size")

    def __init__(self, stored: Iterable[StoredOwner] = ()) -> None:
        """Start with what a snapshot has."""
        self._by_group = {each.owner.group: each for each in stored}
        self.size = sum(each.size for each in self)
        """Bytes of the newest records: what a new segment begins with."""

    def __iter__(self) -> Iterator[StoredOwner]:
        """Iterate over the records, one for each group."""
        return iter(self._by_group.values())

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self._by_group)

    def get(self, group: str | None) -> Owner | None:
        """Return the last grant in a group, or its end."""
        stored = self._by_group.get(group)
        return None if stored is None else stored.owner

    def replay(self, record: OwnershipRecord, offset: Offset, size: int) -> None:
        """A record or a copy of one is in the log at ``offset``: the newest one counts.

        For a group too many the one that ended first is forgotten.
        """
        owner = Owner(*record[:-1])
        if not self._is_known_or_fits(owner.group):
            forgotten = self._ended_first()
            if forgotten is not None:
                self.size -= forgotten.size
                del self._by_group[forgotten.owner.group]
        before = self._by_group.get(owner.group)
        self.size += size - (0 if before is None else before.size)
        self._by_group[owner.group] = StoredOwner(owner, record.offset, offset, size)

    def judge(self, owner: Owner) -> Appended | Rejected | None:
        """Return None if the record is to be appended; the stored one's offsets if it repeats it.

        Rejected with OWNER_FENCED if a later grant or the end of this one is known, and with
        POLICY_VIOLATION for one group too many, for good.
        """
        stored = self._by_group.get(owner.group)
        if stored is None:
            if self.has_room(owner.group):
                return None
            return Rejected(
                ErrorCode.POLICY_VIOLATION,
                f"{GROUPS_MAX} groups have an owner of this partition: no other one may",
            )
        known = stored.owner
        if owner.follows(known):
            return None
        is_same = (owner.epoch, owner.session) == (known.epoch, known.session)
        if is_same and owner.is_live == known.is_live:
            return Appended(stored.offset, Offset(stored.offset + 1))
        return Rejected(
            ErrorCode.OWNER_FENCED,
            f"epoch {owner.epoch} of {owner.holder} is over: {known.holder} was granted epoch "
            f"{known.epoch}{'' if known.is_live else ', which has ended'}",
        )

    def has_room(self, group: str | None) -> bool:
        """Tell whether a group may have an owner: it has had one, or there are not too many."""
        return self._is_known_or_fits(group) or self._ended_first() is not None

    def _is_known_or_fits(self, group: str | None) -> bool:
        return group in self._by_group or len(self._by_group) < GROUPS_MAX

    def _ended_first(self) -> StoredOwner | None:
        """The group that ended first: its id and connections are the longest over.

        The owner of writes is none: of the last one nothing is accepted, however long ago it was.
        """
        ended = (each for each in self if not each.owner.is_live and each.owner.group is not None)
        return min(ended, key=attrgetter("offset"), default=None)

    @property
    def lowest(self) -> Offset:
        """Where the newest records begin; above every offset if there is none."""
        return min((each.newest for each in self), default=Offset(sys.maxsize))

    @property
    def end(self) -> Offset:
        """The offset after the newest record; 0 without one."""
        return max((Offset(each.newest + 1) for each in self), default=Offset(0))

    def fills(self, base_offset: Offset, end_offset: Offset) -> bool:
        """Tell whether there is nothing but newest records between two offsets."""
        inside = sum(base_offset <= each.newest < end_offset for each in self)
        return inside == end_offset - base_offset
