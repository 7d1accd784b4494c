"""Stock clients and streams: consumers read past seals, producers are refused at once (R1, R2)."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from fencelog.client.blocking import Client
from tests.conformance.test_owned_logs import Counted
from tests.support.broker import BrokerProcess
from tests.support.owned_logs import Written
from tests.support.proxy import FrameProxy
from tests.support.sealed_logs import write_sealed_log
from tests.support.stock import Confluent, StockClient, ToSend

ISOLATIONS = ["read_committed", "read_uncommitted"]
PRODUCE = 0
DEADLINE_S = 20.0


@pytest.fixture(scope="module")
def counted() -> Counted:
    return Counted()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, counted: Counted) -> Iterator[str]:
    """A broker that is reached through a proxy, which counts."""
    place = tmp_path_factory.mktemp("sealed-logs") / "data"
    with FrameProxy(counted) as proxy:
        settings = f"advertised.listeners=PLAINTEXT://{proxy.address}\n"
        with BrokerProcess(place, settings=settings) as broker:
            proxy.upstream = (broker.host, broker.port)
            yield proxy.address


@pytest.fixture(scope="module")
def written(address: str) -> Written:
    with Client(address) as client:
        return write_sealed_log(client, address, "sealed")


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_seals_and_what_follows_them_are_passed(  # R2
    address: str, client: StockClient, written: Written, isolation: str
) -> None:
    seen = client.read(address, "sealed", isolation=isolation)
    wanted = written.committed if isolation == "read_committed" else written.everything
    assert sorted(each.value or b"" for each in seen) == sorted(each or b"" for each in wanted)


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_stock_producer_of_a_stream_gets_one_final_error(  # R1
    address: str, counted: Counted, client: StockClient, written: Written, idempotent: bool
) -> None:
    counted.requests.clear()
    with ThreadPoolExecutor(1) as pool, pytest.raises(Exception, match=r"(?i)policy.?violation"):
        pool.submit(
            client.write, address, "sealed", [ToSend(b"x", partition=1)], idempotent=idempotent
        ).result(DEADLINE_S)
    assert counted.requests[PRODUCE] == 1, "it is not retried"


def test_a_stock_transaction_learns_it_at_once_and_its_producer_can_go_on(  # R1
    address: str, written: Written, topic: str
) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(_abort_and_go_on, address, topic).result(DEADLINE_S)
    assert [each.value for each in Confluent().read(address, topic)] == [b"elsewhere"]


def _abort_and_go_on(address: str, topic: str) -> None:
    with closing(Confluent().transactional(address, "a stock producer's")) as writer:
        writer.begin()
        with pytest.raises(Exception, match="POLICY_VIOLATION"):
            writer.send("sealed", b"x")
        writer.abort()
        writer.begin()
        writer.send(topic, b"elsewhere")
        writer.commit()
