"""Our own client against a real broker that loses answers, is killed, and comes back."""

import threading
from collections.abc import Callable

import pyarrow as pa
import pytest

from fencelog.client.blocking import Client
from fencelog.client.model import DataLossError, Joined
from fencelog.errors import ErrorCode, RequestError
from fencelog.types import TopicPartition
from fencelog.wire.api_versions import ApiKey
from tests.support.broker import BrokerProcess
from tests.support.proxy import Action, FrameProxy, Request
from tests.support.waiting import wait_until

Proxied = Callable[[Callable[[Request], Action]], FrameProxy]


class Every:
    """Loses the answer to every n-th request of a kind."""

    def __init__(self, api_key: int, every: int) -> None:
        self._api_key = api_key
        self._every = every
        self._seen = 0
        self.lost = 0

    def __call__(self, request: Request) -> Action:
        if request.api_key != self._api_key:
            return Action.FORWARD
        self._seen += 1
        if self._seen % self._every:
            return Action.FORWARD
        self.lost += 1
        return Action.LOSE_ANSWER


def numbered(first: int, count: int) -> pa.RecordBatch:
    values = pa.array([b"%d" % n for n in range(first, first + count)], pa.binary())
    return pa.RecordBatch.from_arrays([values], names=["value"])


def read_all(client: Client, place: TopicPartition) -> list[int]:
    (end,) = client.offsets([place], "latest").values()
    return [
        int(value.as_py())
        for batch in client.fetch_arrow(place, 0, end, columns=frozenset(("value",)))
        for value in batch.column("value")
    ]


def test_lost_answers_neither_lose_nor_double_nor_reorder(proxied: Proxied, topic: str) -> None:
    # E4, E13: several batches are in flight when the answer to one is lost.
    losses = Every(ApiKey.PRODUCE, 7)
    with Client(proxied(losses).address) as client:
        client.create_topic(topic, 1)
        with client.arrow_writer(topic=topic, batch_bytes=200) as writer:
            for first in range(0, 1_000, 100):
                writer.write(numbered(first, 100))
                writer._encode()
        assert losses.lost > 3
        assert read_all(client, TopicPartition(topic, 0)) == list(range(1_000))


def test_lost_answers_to_a_transactions_requests_change_nothing(
    proxied: Proxied, topic: str
) -> None:
    losses = [
        Every(key, 2)
        for key in (ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.END_TXN)
    ]

    def decide(request: Request) -> Action:
        actions = [loss(request) for loss in losses]
        return Action.LOSE_ANSWER if Action.LOSE_ANSWER in actions else Action.FORWARD

    with Client(proxied(decide).address) as client:
        client.create_topic(topic, 1)
        with client.producer(transactional_id=f"id-{topic}") as producer:
            for number in range(6):
                producer.begin()
                producer.send(topic, b"%d" % number)
                if number % 3 == 1:
                    producer.abort()
                else:
                    producer.commit()
        place = TopicPartition(topic, 0)
        wait_until(lambda: read_all(client, place) == [0, 2, 3, 5], what="committed records")


def test_lost_answers_to_a_versioned_transactions_requests_change_nothing(
    proxied: Proxied, topic: str
) -> None:  # V3
    lost = {key: Every(key, 2) for key in (ApiKey.JOIN_TRANSACTION, ApiKey.COMMIT_TRANSACTION)}

    def decide(request: Request) -> Action:
        found = lost.get(request.api_key)  # type: ignore[call-overload]
        return Action.FORWARD if found is None else found(request)

    with Client(proxied(decide).address) as client:
        client.create_topic(topic, 2)
        for version in range(4):
            joined = client.join_transaction(f"app-{topic}", "query", "run", version)
            assert isinstance(joined, Joined)
            with client.versioned_writer(joined, topic=topic) as writer:
                writer.write(numbered(100 * version, 100))
            client.commit_transaction(
                f"app-{topic}", "query", "run", version, b"f", [joined.producer_id]
            )
        assert lost[ApiKey.COMMIT_TRANSACTION].lost > 0

        def found() -> list[int]:
            return sorted(n for p in range(2) for n in read_all(client, TopicPartition(topic, p)))

        wait_until(lambda: found() == list(range(400)), what="four versions")


@pytest.mark.parametrize("kills", [3])
def test_a_broker_that_is_killed_while_we_write_loses_and_duplicates_nothing(
    broker: BrokerProcess, topic: str, kills: int
) -> None:  # D1, E4, E13, E15
    with Client(broker.address) as client:
        client.create_topic(topic, 1)
        written = threading.Event()
        failures: list[BaseException] = []
        last = 0

        def write() -> None:
            nonlocal last
            try:
                with client.arrow_writer(topic=topic, batch_bytes=500) as writer:
                    while not written.is_set() or last < 3_000:
                        writer.write(numbered(last, 50))
                        writer._encode()
                        last += 50
                        writer.flush()
            except BaseException as error:  # noqa: BLE001 - shown by the test's own thread
                failures.append(error)

        thread = threading.Thread(target=write)
        thread.start()
        for _ in range(kills):
            seen = last
            wait_until(lambda seen=seen: last > seen + 500 or failures, what="progress")
            broker.kill()
            broker.start()
        written.set()
        thread.join(60)
        assert failures == []
        assert read_all(client, TopicPartition(topic, 0)) == list(range(last))


def test_a_reader_goes_on_where_it_was_when_the_broker_comes_back(
    broker: BrokerProcess, topic: str
) -> None:
    with Client(broker.address) as client:
        client.create_topic(topic, 1)
        place = TopicPartition(topic, 0)
        with client.arrow_writer(topic=topic, batch_bytes=2_000) as writer:
            writer.write(numbered(0, 5_000))
        records = client.fetch(place, 0, 5_000, max_bytes=4_000)
        first = [next(records) for _ in range(10)]
        broker.kill()
        broker.start()
        rest = list(records)
        assert [int(r.value or b"") for r in first + rest] == list(range(5_000))


def test_records_that_retention_deleted_are_a_loss_and_not_a_gap(
    shared_broker: BrokerProcess, topic: str
) -> None:  # S6
    with Client(shared_broker.address, request_timeout_s=1.0) as client:
        client.create_topic(topic, 1)
        place = TopicPartition(topic, 0)
        with client.producer() as producer:
            producer.send(topic, b"v")
        with pytest.raises(DataLossError, match=f"{topic}-0 ends at offset 1"):
            list(client.fetch(place, 100, 200))
        with pytest.raises(DataLossError, match="no visible record from offset 1"):
            list(client.fetch(place, 0, 50))


def test_a_fenced_producer_gets_an_error_and_changes_nothing(
    shared_broker: BrokerProcess, topic: str
) -> None:  # E2
    with Client(shared_broker.address) as client:
        client.create_topic(topic, 1)
        zombie = client.producer(transactional_id=f"id-{topic}")
        zombie.begin()
        zombie.send(topic, b"0")
        zombie.flush()
        with client.producer(transactional_id=f"id-{topic}") as successor:
            zombie.send(topic, b"1")
            with pytest.raises(RequestError, match="must stop") as caught:
                zombie.flush()
            assert caught.value.code in (
                ErrorCode.INVALID_PRODUCER_EPOCH,
                ErrorCode.PRODUCER_FENCED,
            )
            with pytest.raises(RequestError):
                zombie.abort()
            successor.begin()
            successor.send(topic, b"2")
            successor.commit()
        zombie.close()
        place = TopicPartition(topic, 0)
        wait_until(lambda: read_all(client, place) == [2], what="the successor's record")


def test_a_writer_of_an_aborted_transaction_is_refused(
    shared_broker: BrokerProcess, topic: str
) -> None:  # V1, V5
    with Client(shared_broker.address) as client:
        client.create_topic(topic, 1)
        app = f"app-{topic}"
        joined = client.join_transaction(app, "query", "run", 0)
        assert isinstance(joined, Joined)
        with client.versioned_writer(joined, topic=topic) as writer:
            writer.write(numbered(0, 10))
            writer.flush()
            client.abort_transaction(app, "query", "run", 0)
            writer.write(numbered(10, 10))
            with pytest.raises(RequestError):
                writer.flush()
            writer.close()
            with pytest.raises(RequestError) as caught:
                client.commit_transaction(app, "query", "run", 0, b"f", [joined.producer_id])
        assert caught.value.code is ErrorCode.TRANSACTION_ABORTED
        assert read_all(client, TopicPartition(topic, 0)) == []
