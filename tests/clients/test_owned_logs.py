"""KafkaJS and platformatic read past ownership records, wherever these stand (O9)."""

from collections.abc import Callable

import pytest

from tests.clients.node_client import NodeClient
from tests.support.broker import BrokerProcess
from tests.support.owned_logs import Written, write_owned_log


@pytest.fixture(scope="module")
def owned(clients_broker: BrokerProcess) -> Written:
    return write_owned_log(clients_broker.address, "owned")


@pytest.mark.parametrize("name", ["kafkajs", "platformatic"])
def test_ownership_records_are_passed_at_both_isolations(
    clients_broker: BrokerProcess, owned: Written, start: Callable[[str], NodeClient], name: str
) -> None:
    node, address = start(name), clients_broker.address
    for isolation, wanted in (
        ("read_committed", owned.committed),
        ("read_uncommitted", owned.everything),
    ):
        seen = node.read(address, "owned", isolation=isolation)
        assert [each.value for each in seen][: len(wanted)] == wanted
