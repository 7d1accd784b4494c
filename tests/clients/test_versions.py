"""Which versions foreign clients choose, and the traps that lie in what a broker offers them.

The traps are those that real clients fell into while the versions were chosen; each is named.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fencelog.client.blocking import Client
from tests.clients.conftest import SETTINGS
from tests.clients.node_client import NodeClient
from tests.support.broker import BrokerProcess
from tests.support.proxy import Action, FrameProxy, Request

PRODUCE, FETCH, METADATA, FIND_COORDINATOR = 0, 1, 3, 10
ADD_PARTITIONS_TO_TXN, END_TXN, TXN_OFFSET_COMMIT = 24, 26, 28


class Recorder:
    """Every version of every API that was asked for."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.seen: dict[int, set[int]] = {}

    def __call__(self, request: Request) -> Action:
        """Note it."""
        self.seen.setdefault(request.api_key, set()).add(request.api_version)
        return Action.FORWARD


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[tuple[str, Recorder]]:
    """The address of a broker behind a recorder, and what was recorded."""
    recorder = Recorder()
    proxy = FrameProxy(recorder)
    with (
        proxy,
        BrokerProcess(
            tmp_path / "data",
            settings=f"{SETTINGS}advertised.listeners=PLAINTEXT://{proxy.address}\n",
        ) as broker,
    ):
        proxy.upstream = (broker.host, broker.port)
        yield proxy.address, recorder


# What each chose when this was written. A change of ours or of theirs that moves it is to be seen.
CHOSEN = {
    "kafkajs": {PRODUCE: {7}, FETCH: {11}, ADD_PARTITIONS_TO_TXN: {1}, END_TXN: {1}},
    "platformatic": {FETCH: {16}, ADD_PARTITIONS_TO_TXN: {3}},
    "confluent": {FETCH: {16}, ADD_PARTITIONS_TO_TXN: {0}, END_TXN: {1}},
}


def test_each_client_chooses_versions_that_belong_together(
    recorded: tuple[str, Recorder], node: NodeClient, fresh_name: Callable[[str], str]
) -> None:
    address, recorder = recorded
    with Client(address) as admin:
        admin.create_topic("t", 1)
    recorder.seen.clear()
    writer = node.transactional(address, fresh_name("id"))
    writer.begin()
    writer.send("t", b"value")
    writer.commit()
    writer.close()
    written = dict(recorder.seen)
    recorder.seen.clear()
    assert [each.value for each in node.read(address, "t")] == [b"value"]
    seen = {**recorder.seen, **written}
    assert {key: seen[key] for key in CHOSEN[node.name]} == CHOSEN[node.name]
    # A broker that offers AddPartitionsToTxn 4 or 5 to clients is asked for it by platformatic.
    assert max(seen[ADD_PARTITIONS_TO_TXN]) <= 3
    # EndTxn 5 is transaction version 2, and so is Produce 12: one never comes without the other.
    assert (max(seen[END_TXN]) >= 5) == (max(seen[PRODUCE]) >= 12)
    # It puts topic ids where Fetch 12 has names: it must be offered 13, and ids in Metadata.
    if node.name == "platformatic":
        assert min(seen[FETCH]) >= 13
        assert min(seen[METADATA]) >= 10
