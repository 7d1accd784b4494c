"""Writers against a broker that is killed with SIGKILL again and again; then every record is counted.

One stock client writes idempotent records, another one transactions over all partitions, some of them
aborted on purpose. What each was told is kept: acknowledged, committed, aborted, or not known. At the
end a reader of another library reads everything at ``read_committed``, and the counts must agree.
"""

import json
import random
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.broker import BrokerProcess

PARTITIONS = 3
PLAIN_TOPIC = "plain"
TXN_TOPIC = "transactions"
RECORDS_PER_TRANSACTION = 20
ABORT_EVERY = 4
END_DEADLINE_S = 60.0


@dataclass
class Told:
    """What the writers were told."""

    plain: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Number of each acknowledged record, with the partition and offset it was acknowledged at."""
    sent_plain: int = 0
    committed: set[int] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Verdict:
    """The counts after the last kill; ``problems`` is empty when every promise was kept."""

    kills: int
    seconds: float
    acknowledged: int
    committed: int
    aborted: int
    unknown: int
    unknown_seen: int
    read: int
    problems: tuple[str, ...]


def write_plain(address: str, told: Told, stop: threading.Event) -> None:
    """Idempotent records, numbered, round robin over the partitions, through every crash."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "linger.ms": 5,
            "message.timeout.ms": 120_000,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )

    def delivered(error: object, message: object) -> None:
        if error is not None:
            told.failures.append(f"idempotent write failed for good: {error}")
            stop.set()
            return
        told.plain[int(message.value())] = (message.partition(), message.offset())  # type: ignore[attr-defined]

    number = 0
    while not stop.is_set():
        try:
            producer.produce(
                PLAIN_TOPIC, b"%d" % number, partition=number % PARTITIONS, callback=delivered
            )
            number += 1
        except BufferError:
            pass
        producer.poll(0.0 if number % 100 else 0.005)
    told.sent_plain = number
    left = producer.flush(END_DEADLINE_S)
    if left:
        told.failures.append(f"{left} idempotent records were never acknowledged")


def write_transactions(address: str, told: Told, stop: threading.Event) -> None:
    """Transactions of numbered records; a producer that fails for good is replaced."""
    from confluent_kafka import KafkaException

    number = 0
    producer = None
    while not stop.is_set():
        try:
            if producer is None:
                producer = _transactional(address)
            number += 1
            _one_transaction(producer, number, told)
        except KafkaException:
            if number not in told.committed | told.aborted:
                told.unknown.add(number)
            producer = None


def _transactional(address: str):
    from confluent_kafka import KafkaException, Producer

    producer = Producer(
        {
            "bootstrap.servers": address,
            "transactional.id": "kills",
            "transaction.timeout.ms": 60_000,
            "message.timeout.ms": 60_000,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )
    deadline = time.monotonic() + END_DEADLINE_S
    while True:
        try:
            producer.init_transactions(10)
            return producer
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise


def _one_transaction(producer, number: int, told: Told) -> None:
    from confluent_kafka import KafkaException

    producer.begin_transaction()
    for index in range(RECORDS_PER_TRANSACTION):
        value = json.dumps({"txn": number, "index": index}).encode()
        producer.produce(TXN_TOPIC, value, partition=index % PARTITIONS)
    end = producer.abort_transaction if number % ABORT_EVERY == 0 else producer.commit_transaction
    deadline = time.monotonic() + END_DEADLINE_S
    while True:
        try:
            end(10)
            break
        except KafkaException as error:
            problem = error.args[0]
            if problem.txn_requires_abort():
                end = producer.abort_transaction
            elif not problem.retriable() or time.monotonic() > deadline:
                raise
    if end == producer.abort_transaction:
        told.aborted.add(number)
    else:
        told.committed.add(number)


def read_all(address: str, topic: str) -> dict[int, list[tuple[int, bytes]]]:
    """Offset and value of every visible record of each partition, read with kafka-python."""
    from kafka import KafkaConsumer
    from kafka.structs import TopicPartition

    partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
    consumer = KafkaConsumer(
        bootstrap_servers=address,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    try:
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        consumer.seek_to_beginning(*partitions)
        found: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
        deadline = time.monotonic() + END_DEADLINE_S
        while any(consumer.position(p) < ends[p] for p in partitions):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic} could not be read to its end {ends}")
            for records in consumer.poll(timeout_ms=200).values():
                for record in records:
                    found[record.partition].append((record.offset, record.value))
        return found
    finally:
        consumer.close()


def judge_plain(told: Told, found: dict[int, list[tuple[int, bytes]]]) -> list[str]:
    """Nothing acknowledged lost or moved, nothing doubled, order kept on each partition."""
    problems = []
    where: dict[int, tuple[int, int]] = {}
    for partition, records in found.items():
        numbers = [int(value) for _, value in records]
        if numbers != sorted(numbers):
            problems.append(f"{PLAIN_TOPIC}-{partition}: records are out of order")
        for offset, value in records:
            number = int(value)
            if number in where:
                problems.append(f"record {number} is there twice: {where[number]}, {offset}")
            where[number] = (partition, offset)
    for number, place in told.plain.items():
        if number not in where:
            problems.append(f"record {number}, acknowledged at {place}, is lost")
        elif where[number] != place:
            problems.append(f"record {number} was acknowledged at {place}, is at {where[number]}")
    return problems


def judge_transactions(
    told: Told, found: dict[int, list[tuple[int, bytes]]]
) -> tuple[list[str], int]:
    """Each transaction whole or absent, as its writer was told; also how many unknown ones are in."""
    seen: dict[int, Counter[int]] = defaultdict(Counter)
    for records in found.values():
        for _, value in records:
            record = json.loads(value)
            seen[record["txn"]][record["index"]] += 1
    problems = []
    whole = Counter(range(RECORDS_PER_TRANSACTION))
    for number, indexes in seen.items():
        if indexes != whole:
            problems.append(f"transaction {number} is torn or doubled: {dict(indexes)}")
        if number in told.aborted:
            problems.append(f"transaction {number} was aborted and is visible")
    problems += [
        f"transaction {number} was committed and is lost"
        for number in sorted(told.committed)
        if number not in seen
    ]
    strays = seen.keys() - told.committed - told.aborted - told.unknown
    problems += [f"transaction {number} was never sent" for number in sorted(strays)]
    return problems, len(told.unknown & seen.keys())


def run(data_dir: Path, kills: int, seed: int, durability: str = "os") -> Verdict:
    """Kill a broker that many times under load, then read and judge."""
    from confluent_kafka.admin import AdminClient, NewTopic

    chance = random.Random(seed)
    began = time.monotonic()
    told = Told()
    stop = threading.Event()
    with BrokerProcess(data_dir, durability=durability) as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        topics = [NewTopic(name, PARTITIONS, 1) for name in (PLAIN_TOPIC, TXN_TOPIC)]
        for created in admin.create_topics(topics).values():
            created.result(END_DEADLINE_S)
        writers = [
            threading.Thread(target=write, args=(broker.address, told, stop))
            for write in (write_plain, write_transactions)
        ]
        for writer in writers:
            writer.start()
        try:
            for _ in range(kills):
                # A kill is due at a moment, not at a condition: the moment is what is varied.
                stop.wait(chance.uniform(0.3, 1.5))
                if stop.is_set():
                    break
                broker.kill()
                broker.start()
        finally:
            stop.set()
            for writer in writers:
                writer.join(2 * END_DEADLINE_S)
        plain = read_all(broker.address, PLAIN_TOPIC)
        transactions = read_all(broker.address, TXN_TOPIC)
    problems, unknown_seen = judge_transactions(told, transactions)
    return Verdict(
        kills=kills,
        seconds=time.monotonic() - began,
        acknowledged=len(told.plain),
        committed=len(told.committed),
        aborted=len(told.aborted),
        unknown=len(told.unknown),
        unknown_seen=unknown_seen,
        read=sum(len(records) for found in (plain, transactions) for records in found.values()),
        problems=(*told.failures, *judge_plain(told, plain), *problems),
    )
