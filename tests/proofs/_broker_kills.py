"""Writers against a broker that is killed with SIGKILL again and again, and then a count.

One stock client writes idempotent records, another one transactions over all partitions, some of
them aborted on purpose. What each knows is kept: acknowledged, committed, aborted, or unknown.
At the end a reader of another library reads everything at ``read_committed``, and the counts must
agree.
"""

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.proofs._compare import Written, check_ends, compare_plain, compare_transactions, read_all
from tests.support.broker import BrokerProcess
from tests.support.hangs import hanging

PARTITIONS = 3
PLAIN_TOPIC = "plain"
TXN_TOPIC = "transactions"
RECORDS_PER_TRANSACTION = 20
ABORT_EVERY = 4
END_DEADLINE_S = 60.0
PAUSE_EVERY = 50
PAUSE_S = 0.005
"""Together about 10,000 records a second: what is to be read back bounds the run."""
KILLED_IN_RECOVERY = 0.2


@dataclass(frozen=True)
class Verdict:
    """The counts after the last kill; ``problems`` is empty when every promise was kept."""

    durability: str
    seed: int
    kills: int
    in_recovery: int
    """Those among the kills that hit a broker which was not ready yet."""
    seconds: float
    acknowledged: int
    committed: int
    aborted: int
    unknown: int
    unknown_seen: int
    read: int
    problems: tuple[str, ...]
    replaced: tuple[str, ...] = ()
    """Why transactional producers were given up; harmless, and good to know."""


def _write_plain(address: str, written: Written, stop: threading.Event) -> None:
    """Idempotent records, numbered, round robin over the partitions, through every crash."""
    from confluent_kafka import KafkaException, Producer

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
            written.failures.append(f"idempotent write failed for good: {error}")
            stop.set()
            return
        written.plain[int(message.value())] = (message.partition(), message.offset())  # type: ignore[attr-defined]

    try:
        while not stop.is_set():
            number = written.sent_plain
            try:
                producer.produce(
                    PLAIN_TOPIC, b"%d" % number, partition=number % PARTITIONS, callback=delivered
                )
                written.sent_plain += 1
            except BufferError:
                pass
            producer.poll(0.0 if number % PAUSE_EVERY else PAUSE_S)
        left = producer.flush(END_DEADLINE_S)
        if left:
            written.failures.append(f"{left} idempotent records were never acknowledged")
    except (KafkaException, SystemError) as error:
        # A fatal error that meets a callback's comes out of confluent-kafka as a SystemError.
        written.failures.append(f"the idempotent producer gave up: {error}")
        stop.set()


def _write_transactions(address: str, written: Written, stop: threading.Event) -> None:
    """Transactions of numbered records; a producer that fails for good is replaced."""
    from confluent_kafka import KafkaException

    number = 0
    producer = None
    while not stop.is_set():
        try:
            if producer is None:
                producer = _transactional(address)
            number += 1
            _one_transaction(producer, number, written)
        except KafkaException as error:
            if number not in written.committed | written.aborted:
                written.unknown.add(number)
            written.replaced.append(f"in transaction {number}: {error}")
            producer = None
    try:
        # The last transaction may have been left open: a next producer ends it, as in real life.
        _transactional(address)
    except KafkaException as error:
        written.failures.append(f"no transactional producer comes up in the end: {error}")


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
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
        else:
            return producer


def _one_transaction(producer, number: int, written: Written) -> None:
    from confluent_kafka import KafkaException

    producer.begin_transaction()
    for index in range(RECORDS_PER_TRANSACTION):
        value = json.dumps({"txn": number, "index": index}).encode()
        producer.produce(TXN_TOPIC, value, partition=index % PARTITIONS)
    end = producer.commit_transaction
    if number % ABORT_EVERY == 0:
        # Otherwise the client takes back what it has not sent yet, and nothing is there to abort.
        producer.flush(END_DEADLINE_S)
        end = producer.abort_transaction
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
        written.aborted.add(number)
    else:
        written.committed.add(number)


def _create_topics(address: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    topics = [NewTopic(name, PARTITIONS, 1) for name in (PLAIN_TOPIC, TXN_TOPIC)]
    for created in admin.create_topics(topics).values():
        created.result(END_DEADLINE_S)


def _kill_in_recovery(broker: BrokerProcess, after_s: float) -> bool:
    """Start the broker and kill it before it is ready, or just then; whether it was before."""

    def shoot() -> None:
        with suppress(AssertionError, ProcessLookupError):
            os.kill(broker.pid, signal.SIGKILL)

    timer = threading.Timer(after_s, shoot)
    timer.start()
    try:
        broker.start()
    except AssertionError:
        return True
    finally:
        timer.cancel()
        timer.join()
        broker.kill()
    return False


def _kill_again_and_again(
    broker: BrokerProcess,
    kills: int,
    chance: random.Random,
    stop: threading.Event,
    progress: Callable[[], None],
) -> int:
    """Return how many of the kills hit a broker that was not ready yet."""
    in_recovery = 0
    done = 0
    while done < kills:
        # A kill is due at a moment, not at a condition: the moment is what is varied.
        stop.wait(chance.uniform(0.3, 1.5))
        if stop.is_set():
            break
        broker.kill()
        done += 1
        progress()
        if done < kills and chance.random() < KILLED_IN_RECOVERY:
            in_recovery += _kill_in_recovery(broker, chance.uniform(0.1, 0.8))
            done += 1
            progress()
        broker.start()
    return in_recovery


def run(
    data_dir: Path,
    *,
    kills: int,
    seed: int,
    durability: str,
    environment: Mapping[str, str] | None = None,
    progress: Callable[[], None] = lambda: None,
) -> Verdict:
    """Kill a broker that many times under load, then read and compare.

    ``environment`` is the broker's: a copy of the source with a fault may run in its place.
    """
    chance = random.Random(seed)
    began = time.monotonic()
    written = Written()
    stop = threading.Event()
    in_recovery = 0
    with BrokerProcess(data_dir, durability=durability, environment=environment) as broker:
        _create_topics(broker.address)
        writers = [
            threading.Thread(target=write, args=(broker.address, written, stop))
            for write in (_write_plain, _write_transactions)
        ]
        for writer in writers:
            writer.start()
        try:
            in_recovery = _kill_again_and_again(broker, kills, chance, stop, progress)
        finally:
            stop.set()
            for writer in writers:
                writer.join(3 * END_DEADLINE_S)
        problems = [*written.failures, *check_ends(broker.address, TXN_TOPIC, PARTITIONS)]
        problems += hanging(broker.address)
        plain = read_all(broker.address, PLAIN_TOPIC, PARTITIONS)
        transactions = read_all(broker.address, TXN_TOPIC, PARTITIONS)
        kills = len(broker.exit_statuses)
    problems += compare_plain(written, plain)
    of_transactions, unknown_seen = compare_transactions(
        written, transactions, RECORDS_PER_TRANSACTION
    )
    return Verdict(
        durability=durability,
        seed=seed,
        kills=kills,
        in_recovery=in_recovery,
        seconds=time.monotonic() - began,
        acknowledged=len(written.plain),
        committed=len(written.committed),
        aborted=len(written.aborted),
        unknown=len(written.unknown),
        unknown_seen=unknown_seen,
        read=sum(len(records) for found in (plain, transactions) for records in found.values()),
        problems=(*problems, *of_transactions),
        replaced=tuple(written.replaced),
    )
