"""A producer whose EndTxn went unanswered: it may still be under way when the next one is open."""

import pytest

from fencelog.client.blocking import Client
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
