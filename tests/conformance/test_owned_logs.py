"""Stock clients and real claims: they read past ownership records and are told who may write."""

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fencelog.client.blocking import Client
from tests.support.broker import BrokerProcess
from tests.support.owned_logs import (
    KEYS,
    NEWEST,
    Written,
    write_compacted_owned_log,
    write_owned_log,
)
from tests.support.ownership import BlockingClaimant
from tests.support.proxy import Action, FrameProxy, Request
from tests.support.stock import (
    Confluent,
    Fenced,
    StockClient,
    ToSend,
    TransactionalWriter,
)
from tests.support.stock.members import ConfluentMember

SETTINGS = "group.initial.rebalance.delay.ms=50\nlog.cleaner.backoff.ms=20\n"
ISOLATIONS = ["read_committed", "read_uncommitted"]
PRODUCE, OFFSET_COMMIT = 0, 8
OURS = 10_000
"""Numbers of APIs from here on are not Kafka's."""
DEADLINE_S = 20.0
REFUSED = r"(?i)topic.?auth"


class Counted:
    """How often each API was asked for; cleared where a count begins."""

    def __init__(self) -> None:
        """Nothing was."""
        self.requests: Counter[int] = Counter()

    def __call__(self, request: Request) -> Action:
        """Count it."""
        self.requests[request.api_key] += 1
        return Action.FORWARD


@pytest.fixture(scope="module")
def counted() -> Counted:
    return Counted()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, counted: Counted) -> Iterator[str]:
    """A broker that is reached through a proxy, which counts."""
    place = tmp_path_factory.mktemp("owned-logs") / "data"
    with FrameProxy(counted) as proxy:
        settings = f"{SETTINGS}advertised.listeners=PLAINTEXT://{proxy.address}\n"
        with BrokerProcess(place, settings=settings) as broker:
            proxy.upstream = (broker.host, broker.port)
            yield proxy.address


@pytest.fixture(scope="module")
def written(address: str) -> Written:
    return write_owned_log(address, "owned")


@pytest.fixture(scope="module")
def compacted(address: str) -> str:
    write_compacted_owned_log(address, "compacted")
    return "compacted"


@pytest.fixture
def bounded() -> Iterator[Callable[..., Any]]:
    """Calls something in a thread: a client that retries for ever fails the test in time."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda call, *arguments: pool.submit(call, *arguments).result(DEADLINE_S)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_ownership_records_are_passed_wherever_they_stand(  # O9
    address: str, counted: Counted, client: StockClient, written: Written, isolation: str
) -> None:
    counted.requests.clear()
    seen = client.read(address, "owned", isolation=isolation)
    assert max(counted.requests) < OURS, "it is offered our APIs and does not know them"
    wanted = written.committed if isolation == "read_committed" else written.everything
    assert [each.value for each in seen] == wanted


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_compacted_owned_logs_are_read_by_everybody(  # O9, D4
    address: str, client: StockClient, compacted: str, isolation: str
) -> None:
    seen = client.read(address, compacted, isolation=isolation)
    last = {each.key: each.value for each in seen}
    assert last == {b"%d" % key: NEWEST for key in range(KEYS)}
    assert len(seen) < seen[-1].offset / 2
    assert [each.offset for each in seen] == sorted({each.offset for each in seen})


def test_a_stock_producer_of_a_foreign_partition_gets_one_final_error(  # O8
    address: str,
    counted: Counted,
    client: StockClient,
    topic: str,
    bounded: Callable[..., Any],
) -> None:
    with Client(address) as admin:
        admin.create_topic(topic, 1)
    with BlockingClaimant(address, holder="host-7") as claimant:
        claimant.own(f"{topic}/0")
        counted.requests.clear()
        for idempotent in (False, True):
            with pytest.raises(Exception, match=REFUSED):
                bounded(write_one, client, address, topic, idempotent)
        assert counted.requests[PRODUCE] == 2


def write_one(client: StockClient, address: str, topic: str, idempotent: bool) -> None:
    client.write(address, topic, [ToSend(b"a stranger's")], idempotent=idempotent)


def test_a_stock_consumer_of_a_foreign_claim_is_told_once_at_its_commit(  # O8
    address: str, counted: Counted, topic: str, bounded: Callable[..., Any]
) -> None:
    Confluent().write(address, topic, [ToSend(b"1")])
    consumer = ConfluentMember(address, topic, topic)
    try:
        while not consumer.poll():
            pass
        with BlockingClaimant(address, group=topic) as claimant:
            claimant.own(f"{topic}/0")
            counted.requests.clear()
            with pytest.raises(Exception, match=REFUSED):
                bounded(consumer.commit, {0: 1})
            assert counted.requests[OFFSET_COMMIT] == 1
            assert consumer.committed(0) is None
            claimant.release()
        consumer.commit({0: 1})
        assert consumer.committed(0) == 1
    finally:
        consumer.close()


@pytest.mark.parametrize("step", ["send", "commit", "begin"])
def test_a_severed_owners_transactional_producer_is_fenced_in_its_own_words(  # O8
    address: str, topic: str, bounded: Callable[..., Any], step: str
) -> None:
    client = Confluent()
    with Client(address) as admin:
        admin.create_topic(topic, 1)
    with BlockingClaimant(address) as one, BlockingClaimant(address) as other:
        old = client.transactional(address, one.own(f"{topic}/0", name=topic))
        try:
            if step != "begin":
                old.begin()
                old.send(topic, b"of a zombie")
            successor = other.own(f"{topic}/0", name=topic)
            with pytest.raises(Fenced):
                bounded(go_on, old, topic, step)
        finally:
            old.close()
        new = client.transactional(address, successor)
        try:
            new.begin()
            new.send(topic, b"of its successor")
            new.commit()
        finally:
            new.close()
    assert [each.value for each in client.read(address, topic)] == [b"of its successor"]


def go_on(writer: TransactionalWriter, topic: str, step: str) -> None:
    if step == "begin":
        writer.begin()
    if step != "commit":
        writer.send(topic, b"late")
    writer.commit()
