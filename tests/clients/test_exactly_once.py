"""Exactly once from topic to topic, whatever is killed, with each client's own transactions.

Clients that name their member in a transaction (TxnOffsetCommit 3) have one transactional id for
each worker, the others one for each input partition.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.conftest import SETTINGS
from tests.clients.copying import Arena, Case, python
from tests.clients.install import node_of
from tests.support.broker import BrokerProcess

BY_PYTHON = {
    "confluent-kafka": "tests.proofs._copier_process",
    "kafka-python": "tests.proofs._copier_process",
    "aiokafka": "tests.clients.aio_copier",
}
BY_NODE = ("kafkajs", "platformatic", "confluent")
BROKER_KILLS = 3
BETWEEN_KILLS_S = 4.0


@pytest.fixture(scope="module")
def copied(
    tmp_path_factory: pytest.TempPathFactory, installed: Callable[[str], Path]
) -> Iterator[Callable[[str], Case]]:
    """All clients have copied at once; returns one's case, or raises what it died of."""
    folder = tmp_path_factory.mktemp("exactly-once")
    broker = BrokerProcess(folder / "data", settings=SETTINGS).start()
    cases, skips = {}, {}
    plans = []
    for name, module in BY_PYTHON.items():
        cases[name] = Case(name, broker, folder / name)
        plans.append((cases[name], python(module), None))
    for name in BY_NODE:
        try:
            where = installed(name)
        except pytest.skip.Exception as skipped:
            skips[name] = skipped
            continue
        cases[name] = Case(name, broker, folder / name)
        plans.append((cases[name], node(where, name), where))
    arena = Arena(broker, BROKER_KILLS, BETWEEN_KILLS_S)
    arena.run(plans)

    def of(name: str) -> Case:
        if name in skips:
            raise skips[name]
        return arena.ended(cases[name])

    yield of
    broker.kill()


def node(where: Path, name: str) -> Callable[[str], list[str]]:
    """The command of a copier in Node."""
    return lambda options: [node_of(where), "copier.mjs", name, options]


@pytest.mark.parametrize("client", [*BY_PYTHON, *BY_NODE])
def test_each_record_is_copied_once_through_kills_of_members_and_of_the_broker(  # E7, E8, E11, E15
    copied: Callable[[str], Case], client: str
) -> None:
    copied(client).check()
