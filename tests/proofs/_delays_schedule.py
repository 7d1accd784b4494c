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
MODES: dict[Mode, float] = {"connection": 0.5, "reordered": 0.3, "late connection": 0.2}
REACTIONS: dict[Reaction, float] = {"retry": 0.55, "abort": 0.25, "replace": 0.15, "away": 0.05}
RACES: dict[Race, float] = {"settled": 0.5, "first": 0.25, "second": 0.25}
LATER_MAX: dict[Version, int] = {1: 13, 2: 9}
"""About two transactions."""
TRANSACTIONS = 3
PRODUCES_EACH = 2


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
    is_split: bool
    """Whether coordinator, leader and group are spoken to on connections of their own."""
    aborts: tuple[int, ...]
    """Which of its transactions it aborts on purpose."""
    restarts: bool
    """Whether the broker is killed before the first held request arrives."""

    @property
    def name(self) -> str:
        """Of its transactional id and group, and in its values."""
        return f"s{self.number}"


def draw(
    seed: int,
    number: int,
    version: Version,
    *,
    mode: Mode | None = None,
    restarts: bool = False,
) -> Schedule:
    """The schedule that this seed and number mean; ``mode`` instead of a drawn one."""
    chosen = random.Random(f"{seed}-{number}")
    one_mode = _pick(chosen, MODES) if mode is None else mode
    count = 1 if restarts else chosen.choice((1, 1, 1, 2))
    return Schedule(
        number=number,
        version=version,
        holds=tuple(_draw_hold(chosen, version, one_mode) for _ in range(count)),
        is_split=chosen.random() < 0.5,
        aborts=tuple(each for each in range(TRANSACTIONS) if chosen.random() < 0.25),
        restarts=restarts,
    )


def _draw_hold(chosen: random.Random, version: Version, mode: Mode) -> Hold:
    api = chosen.choice(HELD[version])
    each = PRODUCES_EACH if api is ApiKey.PRODUCE else 1
    return Hold(
        api=api,
        nth=chosen.randint(1, each * (TRANSACTIONS - 1)),
        mode=mode,
        reaction=_pick(chosen, REACTIONS),
        later=chosen.randint(0, LATER_MAX[version]),
        race=_pick(chosen, RACES),
        is_followed=chosen.random() < 0.3,
    )


def _pick(chosen: random.Random, weights: dict[T, float]) -> T:
    return chosen.choices(list(weights), list(weights.values()))[0]
