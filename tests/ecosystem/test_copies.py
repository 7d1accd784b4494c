"""Frameworks copy a topic while a member and the broker are killed; the proof does it for longer.

Those with transactions must have each record once, the others at least once. All run at once: they
wait more than they compute.
"""

from collections.abc import Callable, Iterator

import pytest

from tests.clients.copying import Arena, Case
from tests.ecosystem._cases import AtLeastOnce, Counted, OneMember
from tests.ecosystem._tools import Command, started_by
from tests.support.broker import BrokerProcess

SETTINGS = "group.initial.rebalance.delay.ms=50\ngroup.min.session.timeout.ms=500\n"
BROKER_KILLS, BETWEEN_KILLS_S = 1, 8.0


class Once(OneMember):
    """One kill is enough here."""

    open_kills = 1


class CountedOnce(Counted, Once):
    """The same with counts."""


class Kept(AtLeastOnce):
    """As short."""

    rounds = 2


CASES: dict[str, type[Case]] = {
    "streams": CountedOnce,
    "quixstreams": Once,
    "faststream": Kept,
    "bytewax": Kept,
}


@pytest.fixture(scope="module")
def copied(
    tmp_path_factory: pytest.TempPathFactory, had: Callable[..., Command]
) -> Iterator[Callable[[str], Case]]:
    """All have copied at once; returns one's case, or raises what it died of."""
    folder = tmp_path_factory.mktemp("ecosystem")
    broker = BrokerProcess(folder / "data", settings=SETTINGS).start()
    cases: dict[str, Case] = {}
    skips: dict[str, pytest.skip.Exception] = {}
    plans = []
    for tool, kind in CASES.items():
        try:
            command = had(started_by, tool, folder / tool)
        except pytest.skip.Exception as skipped:
            skips[tool] = skipped
            continue
        cases[tool] = kind(tool, broker, folder / f"{tool}.log")
        plans.append((cases[tool], command, None))
    arena = Arena(broker, BROKER_KILLS, BETWEEN_KILLS_S)
    arena.run(plans)

    def of(tool: str) -> Case:
        if tool in skips:
            raise skips[tool]
        return arena.ended(cases[tool])

    yield of
    broker.kill()


@pytest.mark.parametrize("tool", CASES)
def test_a_framework_copies_each_record_through_kills_of_itself_and_of_the_broker(
    copied: Callable[[str], Case], tool: str
) -> None:  # E7, E8, E11, E15
    copied(tool).check()
