"""Commits of offsets, and who may make them: the live owner of a partition's commits (rule O8)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fencelog.coordination.group.model import NO_MEMBER, Caller
from fencelog.coordination.group.records import CommittedOffset
from fencelog.coordination.owners import write_commits_owner
from fencelog.coordination.shard import Decision, LogRecord
from fencelog.errors import ErrorCode
from fencelog.log.config import OwnershipKind
from fencelog.log.ownership import Owner
from fencelog.types import NO_PRODUCER_ID, ProducerId, TopicPartition

Answers = dict[TopicPartition, ErrorCode]


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """An OffsetCommit or TxnOffsetCommit request.

    Attributes:
        fenced: partitions of topics with ``group.fence=required``: only members commit there, and
            the owner (rule E8).
        ownership: the setting of the partition's topic; ``if-owned`` where it is left out.
        session: the claim that the connection is attached to.
        producer_id: the producer of the transaction that it is part of.
        transactional_id: of that producer, verified by its coordinator.
    """

    group: str
    offsets: Mapping[TopicPartition, CommittedOffset]
    caller: Caller = NO_MEMBER
    fenced: frozenset[TopicPartition] = frozenset()
    ownership: Mapping[TopicPartition, OwnershipKind] = field(default_factory=dict)
    session: str | None = None
    producer_id: ProducerId = NO_PRODUCER_ID
    transactional_id: str | None = None

    @property
    def is_transactional(self) -> bool:
        """Whether it counts only once a transaction is committed."""
        return self.producer_id != NO_PRODUCER_ID

    def is_made_by(self, owner: Owner) -> bool:
        """Whether it comes from this owner; in a transaction the producer counts alone."""
        if self.is_transactional:
            has_producer = owner.transactional_id is not None
            return has_producer and self.transactional_id == owner.transactional_id
        return self.session == owner.session


@dataclass(slots=True)
class CommitOwners:
    """The owners of commits in one shard; kept for ever, whatever else of a group is forgotten."""

    _owners: dict[tuple[str, TopicPartition], Owner] = field(default_factory=dict)
    # The session before the newest owner's; compaction forgets it, and only refusals need it.
    _former: dict[tuple[str, TopicPartition], str] = field(default_factory=dict, compare=False)

    def store(self, group: str, partition: TopicPartition, owner: Owner) -> None:
        """Apply a record; called by ``replay`` only."""
        place = group, partition
        known = self._owners.get(place)
        if known is not None and known.session != owner.session:
            self._former[place] = known.session
        self._owners[place] = owner

    def get(self, group: str, partition: TopicPartition) -> Owner | None:
        """Return the newest owner, or None where nobody has owned it."""
        return self._owners.get((group, partition))

    def set_owner(
        self, group: str, owner: Owner, partitions: Iterable[TopicPartition]
    ) -> Decision[ErrorCode]:
        """See ``GroupShard.set_owner``.

        The claim's shard counts this as done for good, so no power cut may take it back.
        """
        records: list[LogRecord] = []
        error = ErrorCode.NONE
        for partition in partitions:
            known = self.get(group, partition)
            if owner.follows(known):
                records.append(write_commits_owner(group, partition, owner))
            elif known is not None and owner.epoch < known.epoch:
                error = ErrorCode.OWNER_FENCED
        return Decision(tuple(records), error, must_sync=bool(records))

    def judge(self, asked: Commit, partition: TopicPartition) -> ErrorCode | None:
        """Return NONE for the owner's commit, None where ownership does not matter, or the refusal.

        The refusals are codes that no stock client retries. OWNER_FENCED is for the connections of
        a claim that did own the partition's commits: other partitions may well be theirs.
        """
        setting = asked.ownership.get(partition)
        if setting == "off":
            return None
        owner = self.get(asked.group, partition)
        if owner is None or not owner.is_live:
            return self._refusal(asked, partition, owner) if setting == "required" else None
        if asked.is_made_by(owner):
            return ErrorCode.NONE
        return self._refusal(asked, partition, owner)

    def _refusal(self, asked: Commit, partition: TopicPartition, owner: Owner | None) -> ErrorCode:
        if owner is not None and owner.has_ended(asked.transactional_id):
            return ErrorCode.INVALID_PRODUCER_EPOCH  # a stock producer's ordinary fencing error
        over = {self._former.get((asked.group, partition))}
        if owner is not None and not owner.is_live:
            over.add(owner.session)
        if asked.session is not None and asked.session in over:
            return ErrorCode.OWNER_FENCED
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
