"""Compares what writers know of their records with what a reader of another library finds."""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

READ_STALLED_S = 30.0

Found = Mapping[int, Sequence[tuple[int, bytes]]]
"""Offset and value of each visible record, by partition."""


@dataclass
class Written:
    """What the writers know of their records, from responses."""

    plain: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Number of each acknowledged record, with the partition and offset it was acknowledged at."""
    sent_plain: int = 0
    committed: set[int] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)
    """Transactions whose end was asked for, or never came to that, and was not answered."""
    replaced: list[str] = field(default_factory=list)
    """Why a transactional producer was given up and another one opened."""
    failures: list[str] = field(default_factory=list)


def read_all(address: str, topic: str, partitions: int) -> Found:
    """Everything visible at ``read_committed``, read with kafka-python.

    Raises TimeoutError where the end of a partition is never reached.
    """
    from kafka import KafkaConsumer
    from kafka.structs import TopicPartition

    assigned = [TopicPartition(topic, index) for index in range(partitions)]
    consumer = KafkaConsumer(
        bootstrap_servers=address,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    try:
        consumer.assign(assigned)
        ends = consumer.end_offsets(assigned)
        consumer.seek_to_beginning(*assigned)
        found: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
        reached = dict.fromkeys(assigned, -1)
        deadline = time.monotonic() + READ_STALLED_S
        while any(reached[each] < ends[each] for each in assigned):
            for records in consumer.poll(timeout_ms=200, max_records=5_000).values():
                for record in records:
                    found[record.partition].append((record.offset, record.value))
            now_at = {each: consumer.position(each) for each in assigned}
            if now_at != reached:
                deadline = time.monotonic() + READ_STALLED_S
            elif time.monotonic() > deadline:
                raise TimeoutError(f"{topic} is read to {reached}, and its ends are {ends}")
            reached = now_at
        return found
    finally:
        consumer.close()


def compare_plain(written: Written, found: Found) -> list[str]:
    """Nothing acknowledged lost or moved, nothing duplicate or foreign, order kept by partition."""
    problems = []
    where: dict[int, tuple[int, int]] = {}
    for partition, records in found.items():
        numbers = [int(value) for _, value in records]
        if numbers != sorted(numbers):
            problems.append(f"plain, partition {partition}: records are out of order")
        for offset, value in records:
            number = int(value)
            if number in where:
                problems.append(f"record {number} is there twice: {where[number]}, {offset}")
            if number >= written.sent_plain:
                problems.append(f"record {number} was never sent")
            where[number] = (partition, offset)
    for number, place in written.plain.items():
        if number not in where:
            problems.append(f"record {number}, acknowledged at {place}, is lost")
        elif where[number] != place:
            problems.append(f"record {number} was acknowledged at {place}, is at {where[number]}")
    return problems


def compare_transactions(
    written: Written, found: Found, records_each: int
) -> tuple[list[str], int]:
    """Each transaction whole or absent, as its writer knows; and the number of unknown ones."""
    seen: dict[int, Counter[int]] = defaultdict(Counter)
    problems = []
    for partition, records in found.items():
        places = [
            (each["txn"], each["index"]) for each in (json.loads(value) for _, value in records)
        ]
        if places != sorted(places):
            problems.append(f"transactions, partition {partition}: records are out of order")
        for number, index in places:
            seen[number][index] += 1
    whole = Counter(range(records_each))
    for number, indexes in seen.items():
        if indexes != whole:
            problems.append(f"transaction {number} is torn or duplicated: {dict(indexes)}")
        if number in written.aborted:
            problems.append(f"transaction {number} was aborted and is visible")
    problems += [
        f"transaction {number} was committed and is lost"
        for number in sorted(written.committed)
        if number not in seen
    ]
    strays = seen.keys() - written.committed - written.aborted - written.unknown
    problems += [f"transaction {number} was never sent" for number in sorted(strays)]
    return problems, len(written.unknown & seen.keys())


def check_ends(address: str, topic: str, partitions: int) -> list[str]:
    """No transaction stays open: what transactional readers wait for reaches the log's end."""
    from kafka import KafkaConsumer
    from kafka.structs import TopicPartition

    ends = []
    assigned = [TopicPartition(topic, index) for index in range(partitions)]
    for isolation in ("read_committed", "read_uncommitted"):
        consumer = KafkaConsumer(bootstrap_servers=address, isolation_level=isolation)
        try:
            ends.append(consumer.end_offsets(assigned))
        finally:
            consumer.close()
    stable, high = ends
    return [
        f"{topic}-{each.partition}: committed data ends at {stable[each]} of {high[each]}"
        for each in assigned
        if stable[each] != high[each]
    ]
