"""franz-go, which spreads a producer's requests over connections, in both transaction versions."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fencelog.client.blocking import Client
from tests.support.broker import BrokerProcess
from tests.support.stock import Confluent

DEADLINE_S = 90.0
TRANSACTIONS, RECORDS = 30, 5


@pytest.fixture(scope="session")
def program(installed: Callable[[str], Path]) -> Path:
    """The built program of ``tests/clients/go``."""
    return installed("franz-go")


def values(broker: BrokerProcess, topic: str) -> list[str]:
    return [(seen.value or b"").decode() for seen in Confluent().read(broker.address, topic)]


@pytest.mark.parametrize("version", ["v1", "newest"])
def test_franz_go_writes_and_copies_in_transactions_and_no_connection_is_taken_for_stale(
    clients_broker: BrokerProcess, program: Path, topic: str, version: str
) -> None:  # E14
    copy = f"{topic}-copy"
    with Client(clients_broker.address) as admin:
        for name in (topic, copy):
            admin.create_topic(name, 1)
    done = subprocess.run(
        [program, clients_broker.address, topic, copy, version],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    kept = [
        f"{number}-{part}-true"
        for number in range(TRANSACTIONS)
        if number % 3 != 2
        for part in range(RECORDS)
    ]
    assert values(clients_broker, topic) == kept
    assert values(clients_broker, copy) == kept
    assert "replaced by a newer one" not in clients_broker.stderr
