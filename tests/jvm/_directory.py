"""A data directory that has seen everything: what kafka-dump-log is to read without a complaint."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from fencelog.client.blocking import Client
from fencelog.client.model import Joined
from fencelog.types import Offset, TopicPartition
from tests.support.broker import BrokerProcess
from tests.support.ownership import BlockingClaimant
from tests.support.stock import CODECS, Confluent, KafkaPython, ToSend
from tests.support.stock.members import MEMBERS
from tests.support.waiting import wait_until

SETTINGS = """\
group.initial.rebalance.delay.ms=50
log.cleaner.backoff.ms=20
log.retention.check.interval.ms=50
transaction.state.log.num.partitions=4
"""
SMALL = {"segment.bytes": "8192", "index.interval.bytes": "512"}
COMPACTED = {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
TOPICS: dict[str, dict[str, str]] = {
    "plain": {},
    "rolled": SMALL,
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "transactions": SMALL,
    "versioned": {},
    "compacted": COMPACTED,
    "compacted-transactions": {**COMPACTED, "delete.retention.ms": "1"},
    "trimmed": SMALL,
    "retained": {**SMALL, "retention.bytes": "20000"},
    "owned": SMALL,
    "owned-compacted": {**COMPACTED, "delete.retention.ms": "1"},
    "both": {**COMPACTED, "cleanup.policy": "compact,delete", "retention.bytes": "60000"},
    "untouched": {},
}
PARTITIONS = 2
DEADLINE_S = 30.0


def partition(topic: str, number: int = 0) -> TopicPartition:
    """A partition by its name."""
    return TopicPartition(topic, number)


def fill(folder: Path) -> Path:
    """Run brokers on a fresh directory, one of them killed at work; return it, cleanly stopped."""
    with BrokerProcess(folder / "data", settings=SETTINGS) as broker:
        with Client(broker.address) as client:
            for topic, settings in TOPICS.items():
                client.create_topic(topic, PARTITIONS, configs=settings)
            _plain(broker.address)
            _transactions(broker, client)
            _versioned(client)
            _deleted(client)
            _owned(broker.address, client)
            _compacted(broker.address, client)
        _group(broker.address)
        assert broker.terminate() == 0
    return broker.data_dir


def to_send(count: int, seed: int, keys: int = 1 << 30) -> list[ToSend]:
    random = Random(seed)
    return [
        ToSend(
            value=b"%d:" % number + b"v" * random.randrange(200),
            key=None if keys > 1000 and number % 3 == 0 else b"k%d" % random.randrange(keys),
            headers=((f"h{number % 2}", b"x"), ("second", b"")) if number % 5 == 0 else (),
            partition=number % PARTITIONS,
        )
        for number in range(count)
    ]


def _plain(address: str) -> None:
    for seed, codec in enumerate(CODECS):
        for topic in ("plain", "rolled", "stamped"):
            Confluent().write(address, topic, to_send(120, seed), codec=codec, idempotent=True)
        # A client of another make: it frames snappy and lz4 in its own way.
        KafkaPython().write(address, "plain", to_send(9, seed), codec=codec)


def _transactions(broker: BrokerProcess, client: Client) -> None:
    """Committed, aborted and interleaved ones; one is open when the broker is killed."""
    writers = [Confluent().transactional(broker.address, f"writer-{n}") for n in range(2)]
    for number in range(24):
        for name, writer in enumerate(writers):
            writer.begin()
            for _ in range(3):
                writer.send("transactions", b"%d-%d " % (name, number) + b"t" * 150)
        for name, writer in enumerate(writers):
            if (number + name) % 3 == 0:
                writer.abort()
            else:
                writer.commit()
    writers[0].begin()
    writers[0].send("transactions", b"never committed")
    broker.restart()
    for writer in writers:
        writer.close()
    for name in ("writer-0", "writer-1"):
        with closing(Confluent().transactional(broker.address, name)) as writer:
            writer.begin()
            writer.send("transactions", b"after the kill")
            writer.commit()


def _versioned(client: Client) -> None:
    import pyarrow as pa

    def rows(label: str) -> Any:
        return pa.RecordBatch.from_pydict(
            {
                "key": [b"%d" % number for number in range(40)],
                "value": [f"{label} {number}".encode() for number in range(40)],
                "partition": pa.array([number % PARTITIONS for number in range(40)], pa.int32()),
            }
        )

    query, run = (str(UUID(int=number)) for number in (1, 2))
    for version in range(3):
        written: list[int] = []
        for attempt in ("chosen", "also chosen", "a zombie's"):
            joined = client.join_transaction("app", query, run, version)
            assert isinstance(joined, Joined)
            with client.versioned_writer(joined, topic="versioned", compression="zstd") as writer:
                writer.write(rows(f"{attempt}, version {version}"))
            written.append(joined.producer_id)
        client.commit_transaction("app", query, run, version, b"fingerprint", written[:2])


def _deleted(client: Client) -> None:
    """Records gone by an operator's wish and by retention."""
    for topic in ("trimmed", "retained"):
        with client.producer(batch_bytes=600) as producer:
            for number in range(300):
                producer.send(topic, b"%d " % number + b"d" * 200, partition=number % PARTITIONS)
    client.delete_records({partition("trimmed"): 77, partition("trimmed", 1): 150})

    def has_begun_to_go() -> bool:
        return start_of(client, "retained") > 0

    wait_until(has_begun_to_go, deadline_s=DEADLINE_S, what="retention")


def _owned(address: str, client: Client) -> None:
    """Owners of writes, of a group's commits and of transactional ids, granted and ended."""
    for topic in ("owned", "owned-compacted"):
        with (
            BlockingClaimant(address) as writes,
            BlockingClaimant(address, group="group of owners") as commits,
        ):
            for number in range(PARTITIONS):
                name = writes.own(f"{topic}/{number}", name=topic)
                commits.own(f"{topic}/{number}")
                with client.producer(transactional_id=name, batch_bytes=900) as producer:
                    for end in (producer.commit, producer.abort):
                        producer.begin()
                        for each in range(40):
                            value = b"%d " % each + b"o" * 100
                            producer.send(topic, value, key=b"%d" % (each % 5), partition=number)
                        end()
                writes.release()
                commits.release()


def _compacted(address: str, client: Client) -> None:
    for seed in range(6):
        for topic in ("compacted", "both"):
            records = to_send(60, seed, keys=9)
            tombs = [ToSend(value=None, key=b"k0")] if seed == 3 else []  # type: ignore[arg-type]
            Confluent().write(address, topic, [*records, *tombs], idempotent=seed % 2 == 0)
        name = f"compacted-{seed % 2}"
        with client.producer(transactional_id=name, batch_bytes=900) as producer:
            for end in (producer.commit, producer.abort):
                producer.begin()
                for number in range(40):
                    value = b"%d " % number + b"c" * 100
                    producer.send("compacted-transactions", value, key=b"%d" % (number % 5))
                end()
    for topic in ("compacted", "compacted-transactions"):
        wait_until(_is_small(client, topic), deadline_s=DEADLINE_S, what=f"compaction of {topic}")


def _is_small(client: Client, topic: str) -> Callable[[], bool]:
    def holds() -> bool:
        ends = client.offsets([partition(topic, n) for n in range(PARTITIONS)], "latest")
        counts = [len(list(client.fetch(where, 0, end))) for where, end in ends.items()]
        return sum(counts) < sum(ends.values()) / 2

    return holds


def _group(address: str) -> None:
    """Members come and go in a group, and commit; another only records its progress (S6)."""
    members = [MEMBERS["kafka-python"](address, "group", "plain") for _ in range(2)]

    def all_have_some() -> bool:
        for member in members:
            member.poll()
        return all(member.assignment() for member in members)

    wait_until(all_have_some, deadline_s=DEADLINE_S, what="the group's members")
    for member in members:
        member.commit(dict.fromkeys(member.assignment(), 5))
        member.close()
    with Client(address) as client:
        client.commit_offsets("progress", {partition("plain"): 7})


def start_of(client: Client, topic: str, number: int = 0) -> Offset:
    """The log start offset of a partition."""
    where = partition(topic, number)
    return Offset(client.offsets([where], "earliest")[where])
