"""``fencelog txn`` as a script calls it, against a broker with a transaction that hangs."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from fencelog.client.blocking import Client
from fencelog.client.model import Joined, WriterInfo
from fencelog.errors import RequestError
from fencelog.testing import LocalBroker
from fencelog.types import TopicPartition
from tests.support.cli import DEADLINE_S, Cli
from tests.support.hanging import hang

STRANGER = 900
OLD_OR_NEW = ("--max-transaction-timeout", "0")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    with LocalBroker(tmp_path / "data") as started:
        started.create_topic("t", 2)
        yield started


@pytest.fixture
def cli(broker: LocalBroker) -> Cli:
    return Cli(broker.bootstrap)


def hang_in(broker: LocalBroker, partition: int = 1) -> None:
    node = broker._node
    assert node is not None
    node.run(hang(node._node, "t", STRANGER, partition=partition))


def test_what_hangs_is_found_shown_and_aborted(broker: LocalBroker, cli: Cli) -> None:  # E17
    hang_in(broker)
    (found,) = cli.json("txn", "find-hanging", *OLD_OR_NEW)
    place = (found["topic"], found["partition"], found["start_offset"])
    assert place == ("t", 1, 0)
    assert (found["producer_id"], found["producer_epoch"]) == (STRANGER, 0)
    assert (found["coordinator_epoch"], found["minutes"]) == (-1, 0)
    assert cli.json("txn", "find-hanging") == [], "younger than any transaction may become"
    here = ("-t", "t", "-p", "1")
    (aborted,) = cli.json("txn", "abort", *here, "--start-offset", "0")
    assert (aborted["producer_id"], aborted["aborted"]) == (STRANGER, True)
    assert cli.json("txn", "find-hanging", *OLD_OR_NEW, *here, "--broker", "1") == []
    assert broker.records("t") == []
    assert "begins at 0" in cli.refused(1, "txn", "abort", *here, "--start-offset", "0")


def test_an_open_transaction_does_not_hang_and_is_aborted_by_its_id(
    broker: LocalBroker, cli: Cli
) -> None:  # E7
    with Client(broker.bootstrap) as client:
        producer = client.producer(transactional_id="orders")
        producer.begin()
        producer.send("t", b"a", partition=0)
        producer.flush()
        assert cli.json("txn", "find-hanging", *OLD_OR_NEW) == []
        said = cli.refused(1, "txn", "abort", "-t", "t", "-p", "0", "--start-offset", "0")
        assert "orders has it" in said
        (listed,) = cli.json("txn", "list", "--state", "Ongoing", "--duration-filter", "0")
        assert listed["transactional_id"] == "orders"
        (aborted,) = cli.json("txn", "abort", "orders")
        assert (aborted["producer_id"], aborted["partitions"]) == (listed["producer_id"], ["t-0"])
        with pytest.raises(RequestError, match=r"EPOCH|FENCED"):
            producer.commit()
        assert broker.records("t") == []
    assert cli.json("txn", "list", "--state", "Ongoing") == []
    assert "no open transaction (Empty)" in cli.refused(1, "txn", "abort", "orders")


def test_a_versioned_transaction_does_not_hang_and_is_aborted_by_its_id(
    broker: LocalBroker, cli: Cli
) -> None:  # V1
    with Client(broker.bootstrap) as client:
        joined = client.join_transaction("app", "query", "run", 0, writer=WriterInfo(host="there"))
        assert isinstance(joined, Joined)
        producer_id = joined.producer_id
        hang_in(broker)
        with client.versioned_writer(joined, topic="t") as writer:
            writer.write(pa.RecordBatch.from_pydict({"value": [b"a"]}))
            writer.flush()
            found = cli.json("txn", "find-hanging", *OLD_OR_NEW)
            assert [row["producer_id"] for row in found] == [STRANGER]
            (listed,) = cli.json("txn", "list", "--duration-filter", "0")
            assert (listed["producer_ids"], listed["state"]) == ([producer_id], "Ongoing")
            assert (listed["query"], listed["run"], listed["host"]) == ("query", "run", "there")
            assert (listed["batch"], listed["rows"]) == (0, 1)
            assert listed["age_s"] < DEADLINE_S
            assert cli.json("txn", "list", "--duration-filter", "3600000") == []
            (aborted,) = cli.json("txn", "abort", listed["transactional_id"])
            assert aborted["aborted"] is True
        assert client.describe_app("app").open_version == -1
    assert broker.records("t") == []


@pytest.mark.parametrize(
    ("status", "named", "arguments"),
    [
        (2, "TRANSACTIONAL_ID", ["abort"]),
        (2, "--start-offset", ["abort", "-t", "t", "-p", "0"]),
        (2, "TRANSACTIONAL_ID", ["abort", "orders", "-t", "t"]),
        (4, "nobody", ["abort", "nobody"]),
        (4, "nowhere", ["abort", "-t", "nowhere", "-p", "0", "--start-offset", "0"]),
        (2, "-p", ["find-hanging", "-p", "0"]),
        (2, "-p 7", ["find-hanging", "-t", "t", "-p", "7"]),
        (4, "nowhere", ["find-hanging", "-t", "nowhere"]),
        (4, "--broker 7", ["find-hanging", "--broker", "7"]),
        (2, "PrepareCommit", ["list", "--state", "Nonsense"]),
    ],
)
def test_each_refusal_names_what_was_wrong(
    cli: Cli, status: int, named: str, arguments: list[str]
) -> None:
    assert named in cli.refused(status, "txn", *arguments)


def test_what_ends_while_it_is_looked_for_does_not_hang(broker: LocalBroker) -> None:  # E16
    with Client(broker.bootstrap) as client, Client(broker.bootstrap, client_id="seeker") as seeker:
        producer = client.producer(transactional_id="orders")
        producer.begin()
        producer.send("t", b"a", partition=0)
        producer.flush()
        with broker.hold("ListTransactions", client_id="seeker") as held:
            places = [TopicPartition("t", 0), TopicPartition("t", 1)]
            with ThreadPoolExecutor(1) as pool:
                looking = pool.submit(seeker.find_hanging_transactions, places)
                held.wait()
                producer.commit()
                assert len(broker.records("t")) == 1
                held.release()
                assert looking.result(DEADLINE_S) == []
