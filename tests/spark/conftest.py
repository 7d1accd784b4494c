"""One Spark session for all tests here, one broker, and the few calls that most tests make."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fencelog.client.blocking import Client
from fencelog.errors import RequestError
from fencelog.spark.java import JavaNotFoundError
from fencelog.spark.session import build_session
from fencelog.types import TopicPartition
from tests.support.apache_kafka import ApacheKafka
from tests.support.broker import BrokerProcess
from tests.support.jvm.jars import JarsMissingError
from tests.support.spark import class_archive
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

ROOT = Path(__file__).parent.parent.parent


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Everything here needs Spark, and Spark's own code warns as it likes."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            # Those on Apache Kafka are skipped where Maven Central is out of reach.
            if "kafka" not in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.filterwarnings("default"))
            # Seconds on an idle machine; a busy one makes them minutes, and that is no failure.
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session", autouse=True)
def _archive() -> None:
    """Drivers map their classes. Makes that archive once for a machine, in half a minute."""
    class_archive.make()


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """A session whose tasks may fail three times."""
    # Workers import the tests' own data source by its name.
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([before, str(ROOT)] if before else [str(ROOT)])
    session = build_session(
        name="tests", master="local[2,4]", settings={"spark.sql.shuffle.partitions": "2"}
    )
    yield session
    session.stop()


class Log:
    """The broker as tests use it: topics in, topics out."""

    def __init__(self, client: Client, servers: str) -> None:
        self.client = client
        self.servers = servers

    def topic(self, name: str, partitions: int = 2, **configs: str) -> str:
        """Create a topic and return its name."""
        named = {key.replace("_", "."): value for key, value in configs.items()}
        self.client.create_topic(name, partitions, named)
        return name

    def topic_again(self, name: str, partitions: int = 2) -> None:
        """Delete the topic and create another of that name."""
        self.client.delete_topic(name)

        def created() -> bool:
            try:
                self.topic(name, partitions)
            except RequestError:
                return False
            return True

        wait_until(created, what="the topic created again")

    def produce(self, topic: str, values: Sequence[str], partition: int | None = None) -> None:
        """Write values, each its own key, and wait until they are acknowledged."""
        with self.client.producer() as producer:
            for value in values:
                producer.send(topic, value.encode(), key=value.encode(), partition=partition)

    def produce_in_transaction(self, topic: str, values: Sequence[str], *, commit: bool) -> None:
        """Write values in one transaction and end it."""
        with self.client.producer(transactional_id=f"{topic}-writer") as producer:
            producer.begin()
            for value in values:
                producer.send(topic, value.encode(), partition=0)
            producer.flush()
            if commit:
                producer.commit()
            else:
                producer.abort()

    def values(self, topic: str) -> list[str]:
        """Every committed value, sorted."""
        return sorted((each.value or b"").decode() for each in self.records(topic))

    def records(self, topic: str) -> list:
        """Every committed record, partition by partition.

        A commit is answered once it is decided; readers see it once its markers are written.
        """
        wait_until(
            lambda: not self.client.list_transactions(states=["PrepareCommit", "PrepareAbort"]),
            what="decided transactions are marked",
        )
        partitions = [
            TopicPartition(topic, each) for each in self.client.partitions([topic])[topic]
        ]
        ends = self.client.offsets(partitions, "latest", "transactional")
        starts = self.client.offsets(partitions, "earliest", "transactional")
        return [
            record
            for each in partitions
            if starts[each] < ends[each]
            for record in self.client.fetch(each, starts[each], ends[each])
        ]


@pytest.fixture(scope="session")
def log(shared_broker: BrokerProcess) -> Iterator[Log]:
    """The shared broker with a client."""
    with Client(shared_broker.address) as client:
        yield Log(client, shared_broker.address)


@pytest.fixture
def own_log(broker: BrokerProcess) -> Iterator[Log]:
    """A broker of this test alone with a client, for topics whose names are given."""
    with Client(broker.address) as client:
        yield Log(client, broker.address)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """One broker of Apache Kafka for all tests that bring their own names. It may be restarted."""
    with apache_kafka(tmp_path_factory.mktemp("kafka") / "data") as running:
        yield running


def apache_kafka(folder: Path, section: str = "tools") -> ApacheKafka:
    """A broker on a new folder, or a skip that says which jar cannot be had."""
    try:
        return ApacheKafka(folder, section=section)
    except (JarsMissingError, JavaNotFoundError) as missing:
        pytest.skip(f"no Apache Kafka: {missing}")


Read = Callable[..., "DataFrame"]


@pytest.fixture
def read(spark: "SparkSession", log: Log) -> Read:
    """Batch read of a topic with options."""

    def reader(topic: str, **options: str) -> "DataFrame":
        return (
            spark.read.format("fencelog")
            .option("kafka.bootstrap.servers", log.servers)
            .option("subscribe", topic)
            .options(**options)
            .load()
        )

    return reader


@pytest.fixture
def read_stream(spark: "SparkSession", log: Log) -> Read:
    """Streaming read of a topic from its beginning by default."""

    def reader(topic: str, **options: str) -> "DataFrame":
        return (
            spark.readStream.format("fencelog")
            .option("kafka.bootstrap.servers", log.servers)
            .option("subscribe", topic)
            .options(**{"startingOffsets": "earliest", **options})
            .load()
        )

    return reader


@pytest.fixture
def write_stream(log: Log, tmp_path: Path) -> "Callable[..., StreamingQuery]":
    """Run a frame into a topic until what is there is done; the checkpoint is the test's own."""

    def run(
        frame: "DataFrame",
        topic: str,
        *,
        form: str = "fencelog",
        mode: str = "append",
        trigger: Mapping[str, object] | None = None,
        checkpoint: Path | None = None,
        **options: str,
    ) -> "StreamingQuery":
        query = (
            frame.writeStream.format(form)
            .outputMode(mode)
            .option("kafka.bootstrap.servers", log.servers)
            .option("topic", topic)
            .option("checkpointLocation", str(checkpoint or tmp_path / "checkpoint"))
            .options(**options)
            .trigger(**(trigger or {"availableNow": True}))
            .start()
        )
        if trigger is None or "processingTime" not in trigger:
            query.awaitTermination()
        return query

    return run
