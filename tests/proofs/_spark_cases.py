"""What ``prove spark`` kills under which conditions: the matrix of cases, drawn by seed.

A case is one broker, one master and one session's queries; its strikes hit one after another.
"""

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from tests.proofs._spark_kills import CLUSTER, LOCAL, POINTS, Kill
from tests.support.spark.queries import COMPLETE, COPY, EACH_BATCH
from tests.support.spark.stateful import QUERIES as STATEFUL

STANDALONE: Final = "standalone"
"""A master and two workers, each a process of its own."""
MASTERS: Final = (LOCAL, CLUSTER, STANDALONE)
KINDS: Final = ("stateless", "stateful", "foreachBatch", "complete", "stateful, two", "three")
DURABILITIES: Final = ("os", "fsync")
DEATHS: Final = frozenset({"driver", "jvm", "zombie"})
"""After these another driver is started."""
IN_TASKS, IN_DRIVER = POINTS[:2], POINTS[2:]
STRIKES: Final = (
    *(Kill(target, point) for target in ("driver", "jvm", "zombie") for point in POINTS),
    *(Kill(target, point) for target in ("broker", "worker") for point in POINTS),
    *(Kill(target, point) for target in ("daemon", "executor") for point in IN_TASKS),
    *(Kill(target, "random") for target in ("driver", "jvm", "zombie", "daemon", "executor")),
    *(Kill(target, "random") for target in ("broker", "broker", "worker", "worker")),
    Kill("driver", "start"),
    Kill("broker", "start"),
)
"""Each kind of strike at each of its points, and at any moment. Only clusters have executors."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """The conditions of a row of strikes."""

    master: str
    kind: str
    queries: tuple[str, ...]
    durability: str

    def __str__(self) -> str:
        """As reports name it."""
        return f"{self.master}, {' + '.join(self.queries)}, {self.durability}"


def choose_cases(chance: random.Random) -> list[Case]:
    """Each combination once; any first few of them differ in as much as they can."""
    left = list(product(MASTERS, KINDS, DURABILITIES))
    chance.shuffle(left)
    used: Counter[str] = Counter()
    chosen = []
    while left:
        each = min(left, key=lambda combination: sum(used[part] for part in combination))
        left.remove(each)
        used.update(each)
        master, kind, durability = each
        queries = _queries(kind, chance)
        chosen.append(Case(master=master, kind=kind, queries=queries, durability=durability))
    return chosen


def _queries(kind: str, chance: random.Random) -> tuple[str, ...]:
    stateful = chance.sample(sorted(STATEFUL), 2)
    return {
        "stateless": (COPY,),
        "stateful": (stateful[0],),
        "foreachBatch": (EACH_BATCH,),
        "complete": (COMPLETE,),
        "stateful, two": (stateful[0], stateful[1]),
        "three": (COPY, stateful[0], EACH_BATCH),
    }[kind]


def choose_strikes(case: Case, kills: int, chance: random.Random) -> list[Kill]:
    """Every kind that this master has, in a random order, then again."""
    possible = [each for each in STRIKES if case.master != LOCAL or each.target != "executor"]
    drawn: list[Kill] = []
    while len(drawn) < kills:
        drawn += chance.sample(possible, len(possible))
    return drawn[:kills]


def one_life(kills: Iterable[Kill]) -> list[Kill]:
    """The strikes of one driver: up to the first that ends it, or that has no point.

    After one that has no point the query must go on by itself: held at the point of a next strike,
    it would wait for the killer, and the killer for it.
    """
    life = []
    for kill in kills:
        life.append(kill)
        if kill.target in DEATHS or kill.point not in POINTS:
            break
    return life


def shares(kills: int, cases: Sequence[Case]) -> list[int]:
    """How many kills each case gets."""
    whole, more = divmod(kills, len(cases))
    return [whole + (index < more) for index in range(len(cases))]
