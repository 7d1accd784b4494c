"""Transcripts of the group coordinator.

Each request gets a number, ``#1`` and so on, and an answer comes with the number of its request:
a join may be answered by a later command, or by the passing of time. New members are m1, m2, ...
"""

from fencelog.coordination.group.commit import Commit
from fencelog.coordination.group.metadata import read_group, read_group_key
from fencelog.coordination.group.model import (
    Answer,
    Caller,
    GroupLimits,
    HeartbeatAnswer,
    JoinAnswer,
    JoinRequest,
    LeaveAnswer,
    Leaver,
    Protocol,
    Replies,
    SyncAnswer,
    SyncRequest,
    Ticket,
)
from fencelog.coordination.group.records import CommittedOffset, read_key, read_value
from fencelog.coordination.group.shard import GroupShard
from fencelog.coordination.shard import Decision, LogRecord
from fencelog.types import NO_PRODUCER_ID, Offset, ProducerId
from tests.scenarios.words import Stage, options, partition
from tests.support.groups import subscription
from tests.support.runtime import Runtime

LIMITS = GroupLimits(members_max=3, offsets_retention_ms=600_000, retention_check_s=100)


def caller(word: str, instance_id: str | None = None) -> Caller:
    """``m1/3``: member m1 of generation 3."""
    member_id, _, generation = word.partition("/")
    return Caller(member_id, int(generation or -1), instance_id)


class GroupStage(Stage):
    """One shard of ``__consumer_offsets``."""

    def __init__(self) -> None:
        self.runtime: Runtime[GroupShard] = Runtime(lambda epoch: GroupShard(epoch, LIMITS))
        self.requests = 0
        self.newcomers = 0

    def record(self, offset: int) -> str:
        record = self.runtime.log[offset]
        assert isinstance(record, LogRecord)
        group = read_group_key(record.key)
        if group is not None:
            if record.value is None:
                return f"{group}: forgotten"
            it = read_group(group, record.value)
            members = " ".join(
                f"{each.member_id}={each.assignment.decode() or '-'}" for each in it.members
            )
            return f"{group}: generation {it.generation} {it.protocol} [{members}]"
        key = read_key(record.key)
        assert key is not None
        what = "forgotten" if record.value is None else str(read_value(record.value).offset)
        owner = "" if record.producer_id == NO_PRODUCER_ID else f" pending for {record.producer_id}"
        return f"{key[0]} {key[1]}: {what}{owner}"

    # -- members -------------------------------------------------------------------------------

    def do_join(self, words: list[str]) -> str:
        """``join GROUP [as=ID] [instance=I] [version=V] [type=TYPE] [topics=T,T] [protocols=P,P]
        [session=MS] [rebalance=MS] [owned=X]``; ``-`` is an empty type, or no protocol at all."""
        given = options(words[1:])
        version = int(given.get("version", "9"))
        content = subscription(given.get("topics", "t").split(","), given.get("owned", "").encode())
        self.newcomers += "as" not in given
        protocols = given.get("protocols", "range").split(",")
        request = JoinRequest(
            group=words[0],
            member_id=given.get("as", ""),
            instance_id=given.get("instance"),
            session_timeout_ms=int(given.get("session", "10000")),
            rebalance_timeout_ms=int(given.get("rebalance", "60000")),
            protocol_type=given.get("type", "consumer").strip("-"),
            protocols=tuple(Protocol(name, content) for name in protocols if name != "-"),
            knows_member_id_required=version >= 4,
            knows_skip_assignment=version >= 9,
        )
        decision = self.runtime.shard.join(
            request,
            self._ticket(),
            fresh_id=f"m{self.newcomers}",
            now=self.runtime.now,
            wall_ms=self.runtime.wall_ms,
        )
        return self._told(decision)

    def do_sync(self, words: list[str]) -> str:
        """``sync GROUP MEMBER/GENERATION [instance=I] [type=T] [protocol=P] [MEMBER=SHARE…]``."""
        given = options(words[2:])
        request = SyncRequest(
            group=words[0],
            caller=caller(words[1], given.pop("instance", None)),
            protocol_type=given.pop("type", None),
            protocol=given.pop("protocol", None),
            assignments=tuple((member, share.encode()) for member, share in given.items()),
        )
        return self._told(
            self.runtime.shard.sync(
                request, self._ticket(), now=self.runtime.now, wall_ms=self.runtime.wall_ms
            )
        )

    def do_heartbeat(self, words: list[str]) -> str:
        """``heartbeat GROUP MEMBER/GENERATION [instance=I]``."""
        who = caller(words[1], options(words[2:]).get("instance"))
        return self._told(
            self.runtime.shard.heartbeat(words[0], who, self._ticket(), now=self.runtime.now)
        )

    def do_leave(self, words: list[str]) -> str:
        """``leave GROUP (MEMBER | MEMBER@INSTANCE)…``."""
        leavers = tuple(Leaver(*self._named(word)) for word in words[1:])
        return self._told(
            self.runtime.shard.leave(
                words[0],
                leavers,
                self._ticket(),
                now=self.runtime.now,
                wall_ms=self.runtime.wall_ms,
            )
        )

    @staticmethod
    def _named(word: str) -> tuple[str, str | None]:
        member, at, instance = word.partition("@")
        return member, instance if at else None

    # -- offsets -------------------------------------------------------------------------------

    def do_commit(self, words: list[str]) -> str:
        """``commit GROUP [as=MEMBER/GENERATION] [instance=I] [in=PID] [fenced] PARTITION=OFFSET…``:
        plain, or in a transaction of this producer."""
        given = options(words[1:])
        who = caller(given.pop("as", ""), given.pop("instance", None))
        producer = ProducerId(int(given.pop("in", NO_PRODUCER_ID)))
        fenced = given.pop("fenced", None) is not None
        offsets = {partition(at): CommittedOffset(Offset(int(to))) for at, to in given.items()}
        asked = Commit(
            group=words[0],
            offsets=offsets,
            caller=who,
            producer_id=producer,
            fenced=frozenset(offsets if fenced else ()),
        )
        answers, written = self.decide(
            self.runtime.shard.commit(asked, now=self.runtime.now, wall_ms=self.runtime.wall_ms)
        )
        return " ".join(f"{at}:{error.name}" for at, error in answers.items()) + written

    def do_ended(self, words: list[str]) -> str:
        """``ended PID commit|abort``: the producer's marker is in the partition."""
        self.runtime.end(ProducerId(int(words[0])), commit=words[1] == "commit")
        return ""

    def do_fetch(self, words: list[str]) -> str:
        """``fetch GROUP``: every offset, and which are not stable."""
        shard = self.runtime.shard
        found = {at: str(committed.offset) for at, committed in shard.fetch(words[0]).items()}
        found.update(dict.fromkeys(shard.pending(words[0]), "unstable"))
        return " ".join(f"{at}={found[at]}" for at in sorted(found)) or "none"

    def do_forget(self, words: list[str]) -> str:
        """``forget GROUP PARTITION…``: OffsetDelete."""
        answers, written = self.decide(
            self.runtime.shard.delete_offsets(words[0], [partition(word) for word in words[1:]])
        )
        if not isinstance(answers, dict):
            return answers.name
        return " ".join(f"{at}:{error.name}" for at, error in answers.items()) + written

    def do_topic_deleted(self, words: list[str]) -> str:
        """``topic-deleted TOPIC…``: these are gone."""
        _, written = self.decide(self.runtime.shard.topics_deleted(words))
        return written.lstrip() or "nothing"

    # -- operators -----------------------------------------------------------------------------

    def do_describe(self, words: list[str]) -> str:
        """``describe GROUP``: DescribeGroups."""
        it = self.runtime.shard.describe(words[0])
        members = " ".join(
            f"{each.member_id}={each.assignment.decode() or '-'}" for each in it.members
        )
        return f"{it.state.value} generation {it.generation} {it.protocol or '-'} [{members}]"

    def do_list(self, _words: list[str]) -> str:
        """``list``: ListGroups."""
        found = sorted(self.runtime.shard.groups(), key=lambda view: view.group)
        return "\n".join(f"{each.group} {each.state.value}" for each in found) or "none"

    def do_delete(self, words: list[str]) -> str:
        """``delete GROUP``: DeleteGroups."""
        error, written = self.decide(self.runtime.shard.delete_group(words[0]))
        return f"{error.name}{written}"

    def do_advance(self, words: list[str]) -> str:
        """Seconds pass, and what is due by then is done."""
        self.runtime.advance(float(words[0]))
        return self._told(self.runtime.shard.expire(self.runtime.now, self.runtime.wall_ms))

    # -- inside --------------------------------------------------------------------------------

    def _ticket(self) -> Ticket:
        self.requests += 1
        return Ticket(self.requests)

    def _told(self, decision: Decision[Replies]) -> str:
        replies, written = self.decide(decision)
        lines = [f"#{ticket} {told(answer)}" for ticket, answer in replies]
        return "\n".join([*lines, *written.split("\n")[1:]]) or "waits"


def told(answer: Answer) -> str:
    """An answer in words."""
    match answer:
        case JoinAnswer() if answer.generation < 0:
            return f"{answer.error.name} {answer.member_id}".rstrip()
        case JoinAnswer():
            members = " ".join(each.member_id for each in answer.members)
            skip = " skip" if answer.skip_assignment else ""
            return (
                f"{answer.member_id}/{answer.generation} {answer.protocol} "
                f"leader {answer.leader} [{members}]{skip}"
            )
        case SyncAnswer():
            return f"{answer.error.name} {answer.assignment.decode()}".rstrip()
        case LeaveAnswer():
            results = [f"{each.leaver.member_id}:{each.error.name}" for each in answer.results]
            return " ".join(results) or answer.error.name
        case HeartbeatAnswer():
            return answer.error.name
