"""The stream's reader as Spark calls it, against a real broker, without Spark around it."""

import json
from collections.abc import Callable
from threading import Thread

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from pyspark.sql.types import BinaryType, StructField, StructType

from fencelog.client.blocking import Client
from fencelog.client.model import DataLossError
from fencelog.spark.options import source_options
from fencelog.spark.stream_reader import StreamReader
from tests.spark.conftest import Log
from tests.support.broker import BrokerProcess

ALL = ReadAllAvailable()
SCHEMA = StructType([StructField("value", BinaryType())])


def reader(servers: str, **options: str) -> StreamReader:
    given = {"kafka.bootstrap.servers": servers, "startingOffsets": "earliest", **options}
    return StreamReader(source_options(given, {}, streaming=True), SCHEMA)


def values(stream: StreamReader, start: dict, end: dict) -> list[str]:
    return sorted(
        value.decode()
        for partition in stream.partitions(start, end)
        for batch in stream.read(partition)
        for value in batch.column("value").to_pylist()
    )


def test_latest_loses_nothing_between_spark_s_two_questions(log: Log, topic: str) -> None:
    log.topic(topic, 1)
    log.produce(topic, ["before"])
    stream = reader(log.servers, subscribe=topic, startingOffsets="latest")
    first = stream.initialOffset()
    log.produce(topic, ["between"])
    # Spark asks again for the start of batch 0, and writes only its end into its log.
    second = stream.initialOffset()
    end = stream.latestOffset(first, ALL)
    assert end[topic] == {"0": 1}
    assert end != first
    assert values(stream, second, end) == []
    assert values(stream, end, stream.latestOffset(end, ALL)) == ["between"]


def test_the_same_state_is_the_same_text(log: Log, topic: str) -> None:
    log.topic(topic, 12)
    stream = reader(log.servers, subscribe=topic)
    start = stream.initialOffset()
    assert json.dumps(stream.latestOffset(start, ALL)) == json.dumps(start)


def test_a_batch_that_waits_for_more_records_is_not_begun(log: Log, topic: str) -> None:
    log.topic(topic, 1)
    log.produce(topic, ["a"])
    stream = reader(log.servers, subscribe=topic, minOffsetsPerTrigger="3")
    at_least = ReadMinRows(3)
    end = stream.latestOffset(stream.initialOffset(), at_least)
    log.produce(topic, ["b"])
    # Spark begins a batch if this is another text, be it without records.
    assert json.dumps(stream.latestOffset(end, at_least)) == json.dumps(end)
    log.produce(topic, ["c", "d"])
    assert values(stream, end, stream.latestOffset(end, at_least)) == ["b", "c", "d"]


def test_a_repeated_batch_sees_the_same_records(log: Log, topic: str) -> None:  # S2
    log.topic(topic, 2)
    log.produce(topic, [f"{number}" for number in range(30)])
    stream = reader(log.servers, subscribe=topic)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadMaxRows(10))
    before = values(stream, start, end)
    log.produce(topic, ["later"])
    assert len(before) == 10
    assert values(reader(log.servers, subscribe=topic), start, end) == before


def test_available_now_ends_where_the_log_ended(log: Log, fresh_name: Callable[[str], str]) -> None:
    family = fresh_name("family")
    log.topic(f"{family}.one", 1)
    log.produce(f"{family}.one", ["a"])
    stream = reader(log.servers, subscribePattern=f"{family}[.].*")
    start = stream.initialOffset()
    stream.prepareForTriggerAvailableNow()
    log.produce(f"{family}.one", ["b"])
    log.topic(f"{family}.two", 1)
    log.produce(f"{family}.two", ["c"])
    end = stream.latestOffset(start, ALL)
    assert values(stream, start, end) == ["a"]
    assert stream.latestOffset(end, ALL) == end


def test_a_topic_that_appears_is_read_from_its_first_record(
    log: Log, fresh_name: Callable[[str], str]
) -> None:
    family = fresh_name("family")
    log.topic(f"{family}.one", 1)
    stream = reader(log.servers, subscribePattern=f"{family}[.].*")
    start = stream.initialOffset()
    log.topic(f"{family}.two", 1)
    log.produce(f"{family}.two", ["first"])
    assert values(stream, start, stream.latestOffset(start, ALL)) == ["first"]


def test_an_open_transaction_ends_the_batch_before_it(log: Log, topic: str) -> None:  # E10, S2
    log.topic(topic, 1)
    log.produce(topic, ["before"])
    with log.client.producer(transactional_id=f"{topic}-open") as producer:
        producer.begin()
        producer.send(topic, b"open")
        producer.flush()
        log.produce(topic, ["after"])
        committed = reader(log.servers, subscribe=topic)
        start = committed.initialOffset()
        assert values(committed, start, committed.latestOffset(start, ALL)) == ["before"]
        replicated = reader(log.servers, subscribe=topic, isolation="replicated")
        end = replicated.latestOffset(start, ALL)
        assert values(replicated, start, end) == ["after", "before", "open"]


def test_a_start_that_the_log_does_not_have_is_loss(log: Log, topic: str) -> None:  # S6
    log.topic(topic, 1)
    start = {topic: {"0": 7}}
    with pytest.raises(DataLossError, match=r"ends at offset 0, below the start offset 7.*failOn"):
        reader(log.servers, subscribe=topic).latestOffset(start, ALL)
    lenient = reader(log.servers, subscribe=topic, failOnDataLoss="false")
    end = lenient.latestOffset(start, ALL)
    assert values(lenient, start, end) == []


def test_a_repeated_batch_does_not_read_a_topic_that_was_created_again(
    log: Log, topic: str
) -> None:  # S9
    log.topic(topic, 1)
    log.produce(topic, ["old"])
    stream = reader(log.servers, subscribe=topic)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    log.topic_again(topic, 1)
    log.produce(topic, ["new", "newer"])
    with pytest.raises(DataLossError, match=r"was deleted and created again.*failOnDataLoss"):
        values(stream, start, end)
    lenient = reader(log.servers, subscribe=topic, failOnDataLoss="false")
    assert values(lenient, start, end) == []
    assert values(lenient, end, lenient.latestOffset(end, ALL)) == ["new", "newer"]


def test_progress_that_cannot_be_committed_never_fails_the_query(
    topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"kafka.default.api.timeout.ms": "300", "subscribe": topic, "groupId": "g"}
    reader("127.0.0.1:1", **options).commit({topic: {"0": 1}})
    assert "progress of group 'g' not committed" in capsys.readouterr().out


def test_a_broker_that_comes_back_is_waited_for(broker: BrokerProcess, topic: str) -> None:
    with Client(broker.address) as client:
        client.create_topic(topic, 1)
        with client.producer() as producer:
            producer.send(topic, b"kept")
    stream = reader(broker.address, subscribe=topic)
    start = stream.initialOffset()
    broker.kill()
    answers: list[dict] = []
    asking = Thread(target=lambda: answers.append(stream.latestOffset(start, ALL)))
    asking.start()
    broker.start()
    asking.join(30)
    assert values(stream, start, answers[0]) == ["kept"]
