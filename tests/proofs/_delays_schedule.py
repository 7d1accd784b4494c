"""Schedules: which requests of a producer are held on their way, and when they arrive after all."""

import random
from dataclasses import dataclass
from typing import Literal, TypeVar

from fencelog.wire.api_versions import ApiKey

T = TypeVar("T")
Version = Literal[1, 2]
"""Of transactions: 2 has an epoch for each (KIP-890)."""

Mode = Literal["connection", "reordered", "late connection"]
"""How a request is held.

``connection``: with all that follows on its connection, which is older than whatever the client
opens then. ``reordered``: alone, while the rest of its connection passes. ``late connection``: with
all that follows, and it reaches the broker on a connection that is opened only then.
"""

Lines = Literal["one", "leader apart", "coordinator apart", "group apart"]
"""Which connections a producer keeps: one; one for the leader and one for both coordinators, as
kafka-python and aiokafka do; one for the transaction's coordinator and one for the rest, as
librdkafka does; or one for each of the three, as with three brokers."""

Reaction = Literal["retry", "abort", "replace", "away"]
"""What the client does about the missing answer.

``retry``: asks again. ``abort``: gives the transaction up, and does its work in a new one.
``replace``: is replaced by a successor. ``away``: is silent until its transaction has run out of
time, and is replaced then.
"""

Race = Literal["settled", "first", "second"]
"""Against the client's next request: answered before that is sent; sent just before, or after."""

HELD: dict[Version, tuple[ApiKey, ...]] = {
    1: (
        ApiKey.PRODUCE,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.END_TXN,
    ),
    2: (ApiKey.PRODUCE, ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN),
}
"""A producer of version 2 enlists by writing."""
LINES: tuple[Lines, ...] = ("one", "leader apart", "coordinator apart", "group apart")
REACTIONS: dict[Reaction, float] = {"retry": 0.55, "abort": 0.25, "replace": 0.15, "away": 0.05}
RACES: dict[Race, float] = {"settled": 0.5, "first": 0.25, "second": 0.25}
LATER_MAX: dict[Version, int] = {1: 13, 2: 9}
"""About two transactions."""
TRANSACTIONS = 4
PRODUCES_EACH = 2


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What the schedules of one part have in common."""

    version: Version
    mode: Mode
    is_group_apart: bool = False
    """Of version 1, whether the group has a connection to itself; in version 2 it may always."""

    @property
    def lines(self) -> tuple[Lines, ...]:
        """Connections that its producers may keep."""
        if self.version == 2:
            return LINES
        return ("group apart",) if self.is_group_apart else LINES[:-1]

    @property
    def held(self) -> tuple[ApiKey, ...]:
        """Requests that its schedules hold; of a group apart those that its connection carries."""
        return (ApiKey.TXN_OFFSET_COMMIT,) if self.is_group_apart else HELD[self.version]

    @property
    def is_promised(self) -> bool:
        """Whether nothing may go wrong here (E14)."""
        return self.version == 2 or (self.mode == "connection" and not self.is_group_apart)

    @property
    def name(self) -> str:
        """In words."""
        apart = ", the group apart" if self.is_group_apart else ""
        return f"version {self.version}, {self.mode}{apart}"


@dataclass(frozen=True, kw_only=True)
class Hold:
    """One request that is held."""

    api: ApiKey
    nth: int
    """From 1, among the requests of this kind, repeated ones among them."""
    mode: Mode
    reaction: Reaction
    later: int
    """It arrives when so many further requests were made; at the end if there are fewer."""
    race: Race
    is_followed: bool
    """Whether the client's next request was already behind it on its connection."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """One run of one producer."""

    number: int
    version: Version
    holds: tuple[Hold, ...]
    lines: Lines
    aborts: tuple[int, ...]
    """Which of its transactions it aborts on purpose."""
    restarts: bool
    """Whether the broker is killed before the first held request arrives."""

    @property
    def name(self) -> str:
        """Of its transactional id and group, and in its values."""
        return f"s{self.number}"


def draw(seed: int, number: int, kind: Kind, *, restarts: bool = False) -> Schedule:
    """The schedule of this kind that this seed and number mean."""
    chosen = random.Random(f"{seed}-{number}")
    count = 1 if restarts else chosen.choice((1, 1, 1, 2))
    return Schedule(
        number=number,
        version=kind.version,
        holds=tuple(_draw_hold(chosen, kind) for _ in range(count)),
        lines=chosen.choice(kind.lines),
        aborts=tuple(each for each in range(TRANSACTIONS) if chosen.random() < 0.25),
        restarts=restarts,
    )


def _draw_hold(chosen: random.Random, kind: Kind) -> Hold:
    api = chosen.choice(kind.held)
    each = PRODUCES_EACH if api is ApiKey.PRODUCE else 1
    return Hold(
        api=api,
        nth=chosen.randint(1, each * (TRANSACTIONS - 1)),
        mode=kind.mode,
        reaction=_pick(chosen, REACTIONS),
        later=chosen.randint(0, LATER_MAX[kind.version]),
        race=_pick(chosen, RACES),
        is_followed=chosen.random() < 0.3,
    )


def _pick(chosen: random.Random, weights: dict[T, float]) -> T:
    return chosen.choices(list(weights), list(weights.values()))[0]
