"""A short run of a traced broker: everything whose answer promises that something is durable."""

import sys
from collections.abc import Mapping
from pathlib import Path

from fencelog.client.blocking import Client
from fencelog.types import TopicPartition
from tests.support.broker import BrokerProcess

LAUNCHER = Path(__file__).with_name("_launcher.py")
RECORDS = "records"
IN_TRANSACTIONS = "in-transactions"
SENT = 24


class TracedBroker(BrokerProcess):
    """A broker that is started through the launcher."""

    def __init__(self, folder: Path, *, durability: str, environment: Mapping[str, str]) -> None:
        """The trace is beside the data."""
        super().__init__(folder / "data", durability=durability, environment=environment)
        self.trace = folder / "trace"

    def command(self) -> list[str]:
        """The command line with the launcher in the place of the module."""
        command = super().command()
        at = command.index("-m")
        command[at : at + 2] = [str(LAUNCHER), str(self.trace)]
        return [sys.executable, *command[1:]]


def live(folder: Path, *, durability: str, environment: Mapping[str, str]) -> Path:
    """Create, write (over several segments), commit, abort; returns the trace.

    One request at a time on a topic, so that whatever is unsynced at its answer was promised by it.
    """
    from confluent_kafka import Producer

    with TracedBroker(folder, durability=durability, environment=environment) as broker:
        settings = {"bootstrap.servers": broker.address, "log_level": 0}
        with Client(broker.address) as client:
            # Small segments, so that records cross into new files.
            client.create_topic(RECORDS, 2, {"segment.bytes": "4096"})
            client.create_topic(IN_TRANSACTIONS, 1, {})
            producer = Producer({**settings, "enable.idempotence": True})
            for number in range(SENT):
                producer.produce(RECORDS, b"x" * 1000, partition=number % 2)
                assert producer.flush(10) == 0
            writer = Producer({**settings, "transactional.id": "durable"})
            writer.init_transactions(10)
            for end in (writer.commit_transaction, writer.abort_transaction):
                writer.begin_transaction()
                writer.produce(IN_TRANSACTIONS, b"y", partition=0)
                assert writer.flush(10) == 0
                end(10)
            joined = client.join_transaction("app", "query", "run", 0, 10_000)
            client.commit_transaction("app", "query", "run", 0, b"f", [joined.producer_id])
            client.commit_offsets("group", {TopicPartition(RECORDS, 0): 3})
    return broker.trace


def live_twice(folder: Path, *, environment: Mapping[str, str]) -> tuple[Path, Path]:
    """Write without syncs, kill, start and write in ``fsync`` mode; returns the trace of each."""
    from confluent_kafka import Producer

    with TracedBroker(folder, durability="os", environment=environment) as broker:
        producer = Producer({"bootstrap.servers": broker.address, "log_level": 0})
        with Client(broker.address) as client:
            client.create_topic(RECORDS, 2, {})
        producer.produce(RECORDS, b"x", partition=0)
        assert producer.flush(10) == 0
        broker.kill()
        first, broker.trace = broker.trace, folder / "second-trace"
        broker.durability = "fsync"
        broker.start()
        producer.produce(RECORDS, b"x", partition=1)
        assert producer.flush(10) == 0
    return first, broker.trace
