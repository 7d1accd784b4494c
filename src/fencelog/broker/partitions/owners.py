"""What a partition's owners allow: who may write, and who may read (O8)."""

from fencelog.errors import ErrorCode
from fencelog.log.config import LogConfig
from fencelog.log.ownership import GROUPS_MAX, Owner
from fencelog.log.partition_log import PartitionLog
from fencelog.log.values import Rejected
from fencelog.types import TopicPartition
from fencelog.wire.batch import BatchHeader
from fencelog.wire.control import OwnershipRecord, read_control


class OwnerChecks:
    """Judges requests by the partition's own log, in the step of their effect."""

    __slots__ = (
        "_config",
        "_known",
        "_log",
        "_name",
        "_sessions",
        "guards_reads",
        "guards_writes",
        "writer",
    )

    def __init__(self, name: TopicPartition, partition_log: PartitionLog) -> None:
        """Start with the owners that the log has."""
        self._name = name
        self._log = partition_log
        self._known: dict[str | None, Owner] = {}
        """The last owner of each group."""
        self._sessions: dict[str, Owner] = {}
        """What a session owns the partition as; not live: it did, and does no more."""
        self.guards_writes = False
        """Whether a write must be checked."""
        self.guards_reads = False
        """Whether reads of connections without a session must be checked, too."""
        self.writer = ""
        """The live owner's session, whose batches without transactions pass; none is empty."""
        self._know_owners()
        self.reconfigure(partition_log.config)

    def _know_owners(self) -> None:
        self._known = {owner.group: owner for owner in self._log.owners()}
        self._sessions = {owner.session: owner for owner in self._known.values()}

    def reconfigure(self, config: LogConfig) -> None:
        """Apply the topic's new settings."""
        self._config = config
        # Without files nothing but the seal is read, and whose it is is not recorded any more.
        self.guards_reads = config.ownership_read == "required" and self._log.has_files
        owner = self._log.owner(None)
        self.guards_writes = config.ownership == "required" or (
            config.ownership == "if-owned" and owner is not None
        )
        self.writer = owner.session if owner is not None and owner.is_live else ""

    def replicated(self, batch: memoryview, header: BatchHeader) -> None:
        """The log has a batch of its leader: a connection may be attached to what it ends."""
        control = read_control(batch) if header.is_control else None
        if isinstance(control, OwnershipRecord):
            owner = Owner(*control[:-1])
            if owner != self._known.get(owner.group):  # else it is a copy
                self.changed(owner)

    def changed(self, owner: Owner) -> None:
        """The log has a new owner of a group, or the end of one."""
        before = self._known.get(owner.group)
        if len(self._sessions) > 2 * GROUPS_MAX:
            self._know_owners()
        if before is not None:
            self._sessions[before.session] = before._replace(is_live=False)
        self._sessions[owner.session] = self._known[owner.group] = owner
        self.reconfigure(self._config)

    def refused_write(
        self, session: str | None, transactional_id: str | None, *, is_transactional: bool
    ) -> Rejected | None:
        """Return why a batch is refused, if it is; only while ``guards_writes``.

        It is the owner's if it is not transactional and its connection is attached to the owner's
        session, or if it is transactional and its transactional id is the owner's. Of the last
        owner nothing is accepted either once its claim has ended.
        """
        owner = self._log.owner(None)
        if owner is None:
            return self._refused(session, None)
        if is_transactional and owner.has_ended(transactional_id):
            return Rejected(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"the claim of transactional id {transactional_id} is over: {self._who(owner)}",
            )
        is_attached = session == owner.session
        if owner.is_live:
            is_named = transactional_id is not None and transactional_id == owner.transactional_id
            if is_named if is_transactional else is_attached:
                return None
        elif self._config.ownership == "if-owned" and not is_attached:
            return None
        return self._refused(session, owner)

    def _refused(self, session: str | None, owner: Owner | None) -> Rejected:
        """OWNER_FENCED where the connection's claim did own the writes: others may still live."""
        name = f"{self._name.topic}/{self._name.partition}"
        was = None if session is None else self._sessions.get(session)
        if was is not None and was.group is None and not was.is_live:
            return Rejected(
                ErrorCode.OWNER_FENCED,
                f"this connection's claim no longer owns {name}: {self._who(owner)}; claim it "
                "again",
            )
        return Rejected(
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            f"only its owner writes to {name}: {self._who(owner)}; claim it, attach to the "
            "claim, or write with its transactional.id",
        )

    def _who(self, owner: Owner | None) -> str:
        if owner is None:
            return "nobody ever owned it"
        group = "no group" if owner.group is None else f"group {owner.group}"
        claim = f"{owner.holder} ({group}, epoch {owner.epoch})"
        return f"{claim} owns it" if owner.is_live else f"its last owner was {claim}"

    def read_error(self, session: str | None) -> ErrorCode:
        """Return why a connection may not read, NONE if it may.

        A connection whose session owned the partition, in any group, and does no more, may not.
        With ``ownership.read=required`` nobody else may but live owners.
        """
        owner = None if session is None else self._sessions.get(session)
        if owner is not None and not owner.is_live:
            return ErrorCode.OWNER_FENCED
        if self.guards_reads and owner is None:
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return ErrorCode.NONE
