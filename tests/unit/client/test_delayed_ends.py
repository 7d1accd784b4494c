"""Ends of transactions that go unanswered, and what still is under way when the next one begins."""

import asyncio
import threading

import pytest

from fencelog.client.blocking import Client
from fencelog.client.cluster import Cluster, ClusterOptions
from fencelog.client.records_buffer import RecordsBuffer
from fencelog.client.sender import ProducerOptions, open_sender
from fencelog.errors import ErrorCode, RequestError
from fencelog.wire.api_versions import SUPPORTED, ApiKey
from fencelog.wire.batch import read_header
from fencelog.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from fencelog.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from fencelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from fencelog.wire.primitives import Reader
from tests.unit.client.fake_broker import Answer, FakeBroker

DEADLINE_S = 10
Asked = list[tuple[str, int, int]]
Script = list[ErrorCode | None]


def scripted(broker: FakeBroker, ends: Script, fresh: Script) -> Asked:
    """Let these answers come to ends and to requests for an epoch; returns what was asked.

    Every granted epoch is one higher. None: the connection breaks, and the end is decided.
    """
    asked: Asked = []
    epochs = iter(range(1, 100))

    def grant(error: ErrorCode | None) -> None:
        def answer(version: int, body: memoryview) -> Answer:
            request = InitProducerIdRequest.read_from(Reader(body), version)
            asked.append(("fresh", request.producer_id, request.producer_epoch))
            if error is not ErrorCode.NONE:
                return None if error is None else InitProducerIdResponse(error_code=error)
            return InitProducerIdResponse(producer_id=5, producer_epoch=next(epochs))

        broker.script[ApiKey.INIT_PRODUCER_ID].append(answer)

    def end(error: ErrorCode | None) -> None:
        def answer(version: int, body: memoryview) -> Answer:
            request = EndTxnRequest.read_from(Reader(body), version)
            verb = "commit" if request.committed else "abort"
            asked.append((verb, request.producer_id, request.producer_epoch))
            if error is not ErrorCode.NONE:
                return None if error is None else EndTxnResponse(error_code=error)
            return EndTxnResponse(producer_id=5, producer_epoch=next(epochs))

        broker.script[ApiKey.END_TXN].append(answer)

    for error in (ErrorCode.NONE, *fresh):
        grant(error)
    for error in ends:
        end(error)
    return asked


def two_transactions(broker: FakeBroker) -> None:
    with Client(broker.address) as client, client.producer(transactional_id="x") as producer:
        for _ in range(2):
            producer.begin()
            producer.send("t", b"v")
            producer.commit()


def written(broker: FakeBroker) -> list[tuple[int, int]]:
    """Epoch and first sequence of each batch."""
    return [
        (header.producer_epoch, header.base_sequence)
        for request in broker.produced
        for _, partitions in request.topics
        for _, records in partitions
        if records is not None and (header := read_header(records))
    ]


def test_each_transaction_has_the_epoch_that_the_last_end_brought_and_begins_at_0() -> None:  # E14
    with FakeBroker() as broker:
        asked = scripted(broker, [ErrorCode.NONE, ErrorCode.NONE], [])
        two_transactions(broker)
        assert asked == [("fresh", -1, -1), ("commit", 5, 1), ("commit", 5, 2)]
        assert written(broker) == [(1, 0), (2, 0)]


def test_an_end_that_is_not_answered_is_repeated_under_its_own_epoch() -> None:  # E14
    with FakeBroker() as broker:
        asked = scripted(
            broker, [None, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NONE, ErrorCode.NONE], []
        )
        two_transactions(broker)
        assert asked == [("fresh", -1, -1), *[("commit", 5, 1)] * 3, ("commit", 5, 2)]
        assert written(broker) == [(1, 0), (2, 0)]


def test_after_an_end_without_a_response_an_abort_asks_for_an_epoch() -> None:  # E7
    with FakeBroker() as broker, Client(broker.address, request_timeout_s=0.5) as client:
        asked = scripted(broker, [None] * 30, [ErrorCode.NONE])
        producer = client.producer(transactional_id="x")
        producer.begin()
        producer.send("t", b"v")
        with pytest.raises(RequestError, match="NETWORK_EXCEPTION"):
            producer.commit()
        producer.abort()
        assert asked[0] == ("fresh", -1, -1)
        assert asked[-1] == ("fresh", 5, 1)
        assert {verb for verb, *_ in asked[1:-1]} == {"commit"}
        producer.begin()
        producer.send("t", b"w")
        producer.flush()
        assert written(broker) == [(1, 0), (2, 0)]
        producer.close()


def test_an_abort_after_a_failed_batch_costs_no_request_but_its_own() -> None:  # E14
    with FakeBroker() as broker, Client(broker.address) as client:
        asked = scripted(broker, [ErrorCode.NONE], [])
        broker.next_produce(ErrorCode.MESSAGE_TOO_LARGE)
        producer = client.producer(transactional_id="x")
        producer.begin()
        producer.send("t", b"v")
        with pytest.raises(RequestError, match="MESSAGE_TOO_LARGE"):
            producer.flush()
        producer.abort()
        assert asked == [("fresh", -1, -1), ("abort", 5, 1)]
        producer.begin()
        producer.send("t", b"w")
        producer.flush()
        assert written(broker) == [(1, 0), (2, 0)]
        producer.close()


def test_the_end_txn_of_a_zombie_is_refused_and_gets_no_epoch() -> None:  # E2, E7
    with FakeBroker() as broker, Client(broker.address) as client:
        asked = scripted(broker, [ErrorCode.PRODUCER_FENCED], [])
        producer = client.producer(transactional_id="x")
        producer.begin()
        producer.send("t", b"v")
        for ending in (producer.commit, producer.abort):
            with pytest.raises(RequestError) as caught:
                ending()
            assert caught.value.code is ErrorCode.PRODUCER_FENCED
        producer.close()
        assert asked == [("fresh", -1, -1), ("commit", 5, 1)]


def test_an_abort_of_an_empty_transaction_sends_no_request() -> None:
    with FakeBroker() as broker, Client(broker.address) as client:
        asked = scripted(broker, [], [])
        with client.producer(transactional_id="x") as producer:
            producer.begin()
            producer.abort()
            producer.begin()
            producer.commit()
        assert asked == [("fresh", -1, -1)]


def test_a_broker_that_has_version_1_only_is_named() -> None:
    old = ApiVersionsResponse(
        api_keys=[
            ApiVersion(
                api_key=key, min_version=low, max_version=3 if key is ApiKey.END_TXN else high
            )
            for key, (low, high) in SUPPORTED.items()
        ]
    )
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.API_VERSIONS, old)
        with pytest.raises(RequestError, match="KIP-890") as caught:
            client.producer(transactional_id="x")
        assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION


async def _give_an_end_up(broker: FakeBroker, asked: threading.Event) -> None:
    cluster = Cluster(ClusterOptions(bootstrap_servers=broker.address))
    sender = await open_sender(cluster, ProducerOptions(transactional_id="x"))
    await sender.begin()
    buffer = RecordsBuffer(batch_bytes=1000, compression="none")
    buffer.add("t", 1, None, b"v", 0, (), None)
    await sender.enqueue(buffer.take())
    await sender.flush()
    ending = asyncio.create_task(sender.end(commit=True))
    assert await asyncio.to_thread(asked.wait, DEADLINE_S)
    ending.cancel()
    await asyncio.wait([ending])
    assert sender._end_is_unknown
    await sender.close()
    await cluster.close()


def test_an_end_that_its_caller_gives_up_counts_as_unknown() -> None:  # E14
    asked, over = threading.Event(), threading.Event()

    def hold(version: int, body: memoryview) -> Answer:
        asked.set()
        over.wait(DEADLINE_S)
        return None

    with FakeBroker() as broker:
        broker.next(
            ApiKey.INIT_PRODUCER_ID, InitProducerIdResponse(producer_id=5, producer_epoch=1)
        )
        broker.script[ApiKey.END_TXN] += [hold]
        asyncio.run(_give_an_end_up(broker, asked))
        over.set()
