"""Laws of groups, whatever members, time and crashes do.

Members here are honest or asleep: each knows what it was last told, and does one thing after
another. What they are told is held against the laws as it comes.
"""

from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st

from fencelog.coordination.group.commit import Commit
from fencelog.coordination.group.model import (
    Caller,
    GroupLimits,
    JoinAnswer,
    JoinRequest,
    Leaver,
    Protocol,
    Replies,
    SyncAnswer,
    SyncRequest,
    Ticket,
)
from fencelog.coordination.group.records import CommittedOffset
from fencelog.coordination.group.shard import GroupShard
from fencelog.coordination.shard import Decision
from fencelog.errors import ErrorCode
from fencelog.types import Offset, ProducerId, TopicPartition
from tests.support.groups import subscription
from tests.support.runtime import Runtime

T0 = TopicPartition("t", 0)
LIMITS = GroupLimits(session_timeout_ms_min=1, retention_check_s=1e6)
LONG_S = 1000.0


@dataclass
class Client:
    """A process: the last responses that it got."""

    instance_id: str | None
    member_id: str = ""
    generation: int = -1
    leads: tuple[str, ...] = ()
    waiting: Ticket | None = None

    @property
    def caller(self) -> Caller:
        return Caller(self.member_id, self.generation, self.instance_id)


@dataclass
class World:
    """Some clients, one group, and everything that was ever answered."""

    runtime: Runtime[GroupShard] = field(
        default_factory=lambda: Runtime(lambda epoch: GroupShard(epoch, LIMITS))
    )
    clients: list[Client] = field(
        default_factory=lambda: [Client(None), Client(None), Client("i"), Client("i")]
    )
    asked: dict[Ticket, Client] = field(default_factory=dict)
    answered: set[Ticket] = field(default_factory=set)
    rosters: dict[int, set[str]] = field(default_factory=dict)
    newest: int = 0
    numbers: int = 0

    def ticket(self, client: Client) -> Ticket:
        self.numbers += 1
        ticket = Ticket(self.numbers)
        self.asked[ticket] = client
        client.waiting = ticket
        return ticket

    def told(self, decision: Decision[Replies]) -> None:
        for ticket, answer in self.runtime.append(decision):
            assert ticket not in self.answered, "one answer for one request"
            self.answered.add(ticket)
            client = self.asked[ticket]
            if client.waiting != ticket:
                continue  # it gave up on this one
            client.waiting = None
            if isinstance(answer, JoinAnswer):
                self.joined(client, answer)
            elif isinstance(answer, SyncAnswer) and answer.error is not ErrorCode.NONE:
                client.leads = ()

    def joined(self, client: Client, answer: JoinAnswer) -> None:
        if answer.error is ErrorCode.UNKNOWN_MEMBER_ID:
            client.member_id = ""
        elif answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = answer.member_id
        elif answer.error is ErrorCode.NONE:
            assert answer.generation >= self.newest, "generations never go back"
            self.newest = answer.generation
            client.member_id, client.generation = answer.member_id, answer.generation
            client.leads = tuple(each.member_id for each in answer.members)
            assert not client.leads or client.member_id in client.leads
            assert bool(client.leads) == (answer.leader == client.member_id)
            if client.leads:
                self.led(answer)

    def led(self, answer: JoinAnswer) -> None:
        # Static members may be replaced within a generation.
        dynamic = {each.member_id for each in answer.members if each.instance_id is None}
        known = self.rosters.setdefault(answer.generation, dynamic)
        assert known == dynamic, "a generation has one set of members, and its number is used once"

    # -- what clients do -----------------------------------------------------------------------

    def join(self, client: Client) -> None:
        member_id = client.member_id
        request = JoinRequest(
            group="g",
            member_id=member_id,
            instance_id=client.instance_id,
            session_timeout_ms=60_000,
            rebalance_timeout_ms=20_000,
            protocols=(Protocol("range", subscription("t")),),
        )
        self.numbers += 1
        self.told(
            self.runtime.shard.join(
                request,
                self.ticket(client),
                fresh_id=f"m{self.numbers}",
                now=self.runtime.now,
                wall_ms=self.runtime.wall_ms,
            )
        )

    def round(self, who: int) -> None:
        """Those whose bits are set join until a generation begins, and sync."""
        awake = [client for number, client in enumerate(self.clients) if who >> number & 1]
        for client in awake * 2:
            if client.waiting is None:
                self.join(client)
        for _ in range(3):
            self.pass_time(7)
        for client in awake:
            if client.waiting is None:
                self.sync(client)

    def sync(self, client: Client) -> None:
        shares = tuple((member, member.encode()) for member in client.leads)
        request = SyncRequest(group="g", caller=client.caller, assignments=shares)
        now, wall_ms = self.runtime.now, self.runtime.wall_ms
        self.told(self.runtime.shard.sync(request, self.ticket(client), now=now, wall_ms=wall_ms))

    def heartbeat(self, client: Client) -> None:
        ticket = self.ticket(client)
        self.told(self.runtime.shard.heartbeat("g", client.caller, ticket, now=self.runtime.now))

    def leave(self, client: Client) -> None:
        leavers = (Leaver(client.member_id, client.instance_id),)
        ticket = self.ticket(client)
        now, wall_ms = self.runtime.now, self.runtime.wall_ms
        self.told(self.runtime.shard.leave("g", leavers, ticket, now=now, wall_ms=wall_ms))

    def commit(self, client: Client) -> None:
        if client.generation < 0:
            return  # it never was in a generation: nothing distinguishes it from a plain recorder
        in_transaction = ProducerId(self.numbers % 2)
        asked = Commit(
            group="g",
            offsets={T0: CommittedOffset(Offset(self.numbers))},
            caller=client.caller,
            producer_id=in_transaction,
        )
        answers = self.runtime.append(
            self.runtime.shard.commit(asked, now=self.runtime.now, wall_ms=self.runtime.wall_ms)
        )
        if answers[T0] is ErrorCode.NONE:
            # E8: a member fenced by a newer generation never commits an offset.
            assert client.generation == self.newest
        self.runtime.end(in_transaction, commit=True)

    def pass_time(self, seconds: float) -> None:
        self.runtime.advance(seconds)
        self.told(self.runtime.shard.expire(self.runtime.now, self.runtime.wall_ms))

    def crash(self) -> None:
        self.runtime.crash()
        self.asked = {ticket: self.asked[ticket] for ticket in self.answered}
        for client in self.clients:
            client.waiting = None


VERBS = ["join", "join", "sync", "sync", "heartbeat", "leave", "commit"]
steps = st.one_of(
    st.tuples(st.sampled_from(VERBS), st.integers(0, 3)),
    st.tuples(st.just("round"), st.integers(1, 15)),
    st.tuples(st.just("time"), st.sampled_from([1, 3, 9, 61])),
    st.tuples(st.just("crash"), st.just(0)),
)


def play(script: list[tuple[str, int]]) -> World:
    world = World()
    for verb, number in script:
        if verb == "time":
            world.pass_time(number)
        elif verb == "crash":
            world.crash()
        elif verb == "round":
            world.round(number)
        elif world.clients[number].waiting is None or verb in ("join", "leave"):
            getattr(world, verb)(world.clients[number])
    return world


# A static member sleeps through a generation: it still is a member, and must not commit.
@example([("round", 0b101), ("round", 0b011), ("commit", 2)])
@settings(max_examples=200, deadline=None)
@given(st.lists(steps, max_size=25))
def test_generations_only_rise_and_a_fenced_member_never_commits(  # E8, E15
    script: list[tuple[str, int]],
) -> None:
    play(script)


# A group is over before its first generation; the next of that name has a pending member only.
@example([("join", 2), ("leave", 2), ("join", 0)])
@settings(max_examples=200, deadline=None)
@given(st.lists(steps, max_size=25))
def test_every_request_is_answered_once_and_a_group_without_heartbeats_ends_empty(
    script: list[tuple[str, int]],
) -> None:
    world = play(script)
    for _ in range(6):
        world.pass_time(LONG_S)
    assert world.asked.keys() == world.answered
    assert not world.runtime.shard.describe("g").members
