"""What a writer does when a broker refuses, breaks off or is not there."""

import threading

import pyarrow as pa
import pytest

from fencelog.client.blocking import Client
from fencelog.client.model import Delivery
from fencelog.errors import ErrorCode, FencelogError, RequestError
from fencelog.types import TopicPartition
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.batch import read_header
from fencelog.wire.messages.find_coordinator import FindCoordinatorResponse
from fencelog.wire.messages.init_producer_id import InitProducerIdResponse
from fencelog.wire.messages.join_transaction import JoinTransactionResponse
from tests.unit.client.fake_broker import FakeBroker

PRODUCER = InitProducerIdResponse(producer_id=5, producer_epoch=1)


def sequences(broker: FakeBroker) -> list[int]:
    return [
        read_header(records).base_sequence
        for request in broker.produced
        for _, partitions in request.topics
        for _, records in partitions
        if records is not None
    ]


@pytest.mark.parametrize(
    "error",
    [
        None,  # the connection breaks after the batch was stored
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ],
)
def test_a_batch_is_sent_again_under_the_same_sequence(error: ErrorCode | None) -> None:  # E13
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.INIT_PRODUCER_ID, PRODUCER)
        broker.next_produce(ErrorCode.NONE, error, error)
        with client.producer() as producer:
            producer.send("t", b"first")
            producer.flush()
            producer.send("t", b"second")
            assert producer.flush() == [
                Delivery(partition=TopicPartition("t", 0), base_offset=1, count=1)
            ]
        assert sequences(broker) == [0, 1, 1, 1]


def test_a_partition_that_was_added_is_written_to() -> None:
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.INIT_PRODUCER_ID, PRODUCER, PRODUCER)
        with client.producer() as producer, client.arrow_writer(topic="t") as writer:
            producer.send("t", b"first")
            broker.topics["t"] = 2
            producer.send("t", b"second", partition=1)
            broker.topics["t"] = 3
            writer.write(pa.record_batch({"value": [b"third"], "partition": [2]}))
            with pytest.raises(ValueError, match="no partition 3, only 0 to 2"):
                producer.send("t", b"fourth", partition=3)
        written = [part for request in broker.produced for _, part in request.topics]
        assert sorted(partition for ((partition, _),) in written) == [0, 1, 2]


def test_a_batch_that_overtook_a_failed_one_is_sent_again_behind_it() -> None:  # E13
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.INIT_PRODUCER_ID, PRODUCER)
        broker.next_produce(
            ErrorCode.NONE,
            ErrorCode.NOT_ENOUGH_REPLICAS,
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        )
        with client.producer(batch_bytes=1) as producer:
            producer.send("t", b"opens the window")
            producer.flush()
            producer._loop.run(enqueue_at_once(producer, 3))
            producer.flush()
        assert sequences(broker) == [0, 1, 2, 3, 1, 2, 3]


def test_a_gap_that_the_broker_sees_behind_a_batch_in_flight_is_asked_about_again() -> None:  # E5
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.INIT_PRODUCER_ID, PRODUCER)
        broker.next_produce(ErrorCode.NONE, ErrorCode.NONE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        with client.producer(batch_bytes=1) as producer:
            producer.send("t", b"opens the window")
            producer.flush()
            producer._loop.run(enqueue_at_once(producer, 2))
            producer.flush()
        assert sequences(broker) == [0, 1, 2, 2]


async def enqueue_at_once(producer, count: int) -> None:
    """Queue batches in one iteration of the loop, so that they are in flight together."""
    batches = []
    for number in range(count):
        producer._buffer.add("t", 1, None, b"%d" % number, None, (), None)
        batches += producer._buffer.take()
    await producer._sender.enqueue(batches)


def test_a_gap_that_the_broker_sees_in_the_first_batch_is_final() -> None:  # E5
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.INIT_PRODUCER_ID, PRODUCER)
        broker.next_produce(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        producer = client.producer()
        producer.send("t", b"v")
        with pytest.raises(RequestError, match="t-0") as caught:
            producer.flush()
        assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        with pytest.raises(RequestError):
            producer.flush()
        producer.close()


def test_a_refusal_names_partition_broker_and_what_to_do() -> None:
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.INIT_PRODUCER_ID, PRODUCER)
        broker.next_produce(ErrorCode.MESSAGE_TOO_LARGE)
        producer = client.producer()
        producer.send("t", b"v")
        with pytest.raises(RequestError) as caught:
            producer.flush()
        producer.close()
    text = str(caught.value)
    assert "t-0" in text
    assert broker.address in text
    assert "max.message.bytes" in text
    assert "MESSAGE_TOO_LARGE" in text


def test_a_retry_ends_at_the_deadline_and_says_so() -> None:
    with FakeBroker() as broker, Client(broker.address, request_timeout_s=0.3) as client:
        broker.next(ApiKey.INIT_PRODUCER_ID, PRODUCER)
        broker.next_produce(*[ErrorCode.NOT_ENOUGH_REPLICAS] * 100)
        producer = client.producer()
        producer.send("t", b"v")
        with pytest.raises(RequestError, match=r"given up after 0\.3 s") as caught:
            producer.flush()
        producer.close()
        assert caught.value.code is ErrorCode.NOT_ENOUGH_REPLICAS


def test_a_refused_connection_names_the_address_and_asks_whether_a_broker_runs() -> None:
    with FakeBroker() as broker:
        address = broker.address
    with (
        Client(address, request_timeout_s=0.2) as client,
        pytest.raises(RequestError, match=f"{address}.*check that the broker is running"),
    ):
        client.topics()


def test_a_request_that_is_not_answered_is_sent_again_within_the_call_s_time() -> None:
    released = threading.Event()

    def silent(_version: int, _body: memoryview) -> None:
        released.wait(60)

    with (
        FakeBroker() as broker,
        Client(broker.address, request_timeout_s=0.3, api_timeout_s=60) as client,
    ):
        broker.script[ApiKey.METADATA] = [silent]
        assert client.partitions(["t"]) == {"t": [0]}
        released.set()


def test_a_call_ends_after_its_time_whatever_each_request_may_take() -> None:
    with FakeBroker() as broker:
        address = broker.address
    with (
        Client(address, request_timeout_s=60, api_timeout_s=0.3) as client,
        pytest.raises(RequestError, match=r"given up after 0\.3 s"),
    ):
        client.topics()


def test_a_peer_that_speaks_something_else_is_named_as_no_broker() -> None:
    with FakeBroker() as broker, Client(broker.address, request_timeout_s=1.5) as client:
        broker.next(ApiKey.API_VERSIONS, *[b"\x00\x00\xff"] * 50)
        with pytest.raises(RequestError, match="is not a Kafka broker"):
            client.topics()


def test_a_malformed_answer_is_asked_for_again() -> None:
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.METADATA, b"\xff" * 40)
        assert client.partitions(["t"]) == {"t": [0]}


def test_a_topic_that_does_not_exist_is_named() -> None:
    with FakeBroker() as broker, Client(broker.address) as client:
        with pytest.raises(RequestError, match="topic other does not exist") as caught:
            client.partitions(["t", "other"])
        assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ],
)
def test_a_coordinator_that_is_not_ready_is_asked_again(code: ErrorCode) -> None:
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.FIND_COORDINATOR, FindCoordinatorResponse(error_code=code))
        broker.next(
            ApiKey.JOIN_TRANSACTION,
            JoinTransactionResponse(error_code=code),
            None,
            JoinTransactionResponse(producer_id=3, producer_epoch=0, transactional_id="x"),
        )
        joined = client.join_transaction("app", "q", "r", 0)
        assert joined.producer_id == 3


def test_a_producer_that_is_not_idempotent_keeps_order_with_one_batch_in_flight() -> None:  # F5
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next_produce(ErrorCode.NOT_ENOUGH_REPLICAS)
        with client.producer(isolation="read_uncommitted") as producer:
            producer._loop.run(enqueue_at_once(producer, 3))
            producer.flush()
        assert ApiKey.INIT_PRODUCER_ID not in broker.asked
        assert {request.acks for request in broker.produced} == {1}
        assert len(broker.produced) == 4


def test_a_transactional_producer_writes_inside_a_transaction_only() -> None:
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.INIT_PRODUCER_ID, PRODUCER)
        producer = client.producer(transactional_id="x")
        with pytest.raises(FencelogError, match="begin"):
            producer.send("t", b"v")
        with pytest.raises(FencelogError, match="no transaction is open"):
            producer.abort()
        producer.close()


def test_a_partition_that_the_topic_does_not_have_is_refused_before_it_is_sent() -> None:
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.INIT_PRODUCER_ID, PRODUCER)
        producer = client.producer()
        with pytest.raises(ValueError, match="has no partition 7, only 0 to"):
            producer.send("t", b"v", partition=7)
        producer.close()


@pytest.mark.parametrize("isolation", ["transactional", "replicated", "READ_COMMITTED", None])
def test_an_isolation_that_producers_do_not_have_is_refused(isolation: str | None) -> None:  # F5
    """Readers have other names for theirs."""
    with FakeBroker() as broker, Client(broker.address) as client:
        with pytest.raises(ValueError, match="expected read_committed or read_uncommitted"):
            client.producer(isolation=isolation)  # type: ignore[arg-type]
        assert broker.asked == []
