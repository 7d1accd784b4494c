"""A producer whose EndTxn went unanswered: it may still be under way when the next one is open."""

import asyncio
import threading

import pytest

from fencelog.client.blocking import Client
from fencelog.client.cluster import Cluster, ClusterOptions
from fencelog.client.producer import ProducerOptions, open_sender
from fencelog.client.records_buffer import RecordsBuffer
from fencelog.errors import ErrorCode, RequestError
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.batch import read_header
from fencelog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from fencelog.wire.messages.end_txn import EndTxnResponse
from fencelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from fencelog.wire.primitives import Reader
from tests.unit.client.fake_broker import Answer, FakeBroker

ADDED = AddPartitionsToTxnResponse(
    results_by_topic_v3_and_below=[
        AddPartitionsToTxnTopicResult(
            name="t",
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(partition_index=0, partition_error_code=0)
            ],
        )
    ]
)
ENDED = EndTxnResponse()
DEADLINE_S = 10


def two_transactions(broker: FakeBroker, *ends: Answer) -> list[tuple[int, int]]:
    """Commit two; returns with which identity each identity was asked for."""
    asked: list[tuple[int, int]] = []

    def grant(version: int, body: memoryview) -> Answer:
        request = InitProducerIdRequest.read_from(Reader(body), version)
        asked.append((request.producer_id, request.producer_epoch))
        return InitProducerIdResponse(producer_id=5, producer_epoch=len(asked))

    broker.script[ApiKey.INIT_PRODUCER_ID] += [grant, grant]
    broker.next(ApiKey.ADD_PARTITIONS_TO_TXN, ADDED, ADDED)
    broker.next(ApiKey.END_TXN, *ends)
    with Client(broker.address) as client, client.producer(transactional_id="x") as producer:
        for _ in range(2):
            producer.begin()
            producer.send("t", b"v")
            producer.commit()
    return asked


def written(broker: FakeBroker) -> list[tuple[int, int]]:
    """Epoch and first sequence of each batch."""
    return [
        (header.producer_epoch, header.base_sequence)
        for request in broker.produced
        for _, partitions in request.topics
        for _, records in partitions
        if records is not None and (header := read_header(records))
    ]


def test_after_a_lost_answer_to_an_end_the_next_transaction_has_a_fresh_epoch() -> None:  # E14
    with FakeBroker() as broker:
        asked = two_transactions(broker, None, ENDED, ENDED)
        assert asked == [(-1, -1), (5, 1)]
        assert written(broker) == [(1, 0), (2, 0)]


def test_an_answered_end_costs_no_fresh_epoch() -> None:
    with FakeBroker() as broker:
        assert two_transactions(broker, ENDED, ENDED) == [(-1, -1)]
        assert written(broker) == [(1, 0), (1, 1)]


def test_a_producer_with_a_successor_does_not_fence_it_by_a_fresh_epoch() -> None:  # E7
    with FakeBroker() as broker, Client(broker.address) as client:
        fenced = InitProducerIdResponse(error_code=ErrorCode.PRODUCER_FENCED)
        granted = InitProducerIdResponse(producer_id=5, producer_epoch=1)
        broker.next(ApiKey.INIT_PRODUCER_ID, granted, fenced)
        broker.next(ApiKey.ADD_PARTITIONS_TO_TXN, ADDED)
        broker.next(ApiKey.END_TXN, None, ENDED)
        producer = client.producer(transactional_id="x")
        producer.begin()
        producer.send("t", b"v")
        producer.commit()
        with pytest.raises(RequestError) as caught:
            producer.begin()
        producer.close()
        assert caught.value.code is ErrorCode.PRODUCER_FENCED


def test_an_abort_after_a_failed_batch_does_not_fence_a_successor_either() -> None:  # E7
    with FakeBroker() as broker, Client(broker.address) as client:
        fenced = InitProducerIdResponse(error_code=ErrorCode.PRODUCER_FENCED)
        asked: list[tuple[int, int]] = []

        def refuse(version: int, body: memoryview) -> Answer:
            request = InitProducerIdRequest.read_from(Reader(body), version)
            asked.append((request.producer_id, request.producer_epoch))
            return fenced

        broker.next(
            ApiKey.INIT_PRODUCER_ID, InitProducerIdResponse(producer_id=5, producer_epoch=1)
        )
        broker.script[ApiKey.INIT_PRODUCER_ID] += [refuse]
        broker.next(ApiKey.ADD_PARTITIONS_TO_TXN, ADDED)
        broker.next_produce(ErrorCode.MESSAGE_TOO_LARGE)
        producer = client.producer(transactional_id="x")
        producer.begin()
        producer.send("t", b"v")
        with pytest.raises(RequestError, match="MESSAGE_TOO_LARGE"):
            producer.flush()
        with pytest.raises(RequestError) as caught:
            producer.abort()
        producer.close()
        assert asked == [(5, 1)]
        assert caught.value.code is ErrorCode.PRODUCER_FENCED


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
    assert sender._end_may_be_under_way
    await sender.close()
    await cluster.close()


def test_an_end_that_its_caller_gives_up_counts_as_under_way() -> None:  # E14
    asked, over = threading.Event(), threading.Event()

    def hold(version: int, body: memoryview) -> Answer:
        asked.set()
        over.wait(DEADLINE_S)
        return None

    with FakeBroker() as broker:
        broker.next(
            ApiKey.INIT_PRODUCER_ID, InitProducerIdResponse(producer_id=5, producer_epoch=1)
        )
        broker.next(ApiKey.ADD_PARTITIONS_TO_TXN, ADDED)
        broker.script[ApiKey.END_TXN] += [hold]
        asyncio.run(_give_an_end_up(broker, asked))
        over.set()
