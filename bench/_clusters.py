"""A cluster of broker processes over a real etcd, and what a script asks of it."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic, PartitionMetadata

from bench._processes import cpu_s
from bench._stock import DEADLINE_S
from fencelog.broker.config import BrokerConfig
from tests.support.broker import BrokerProcess
from tests.support.etcd import HERE, Etcd, Host, running_etcd
from tests.support.waiting import wait_until

BROKERS = 3
LEASE_S = BrokerConfig.session_timeout_s
SETTINGS = """\
default.replication.factor=3
min.insync.replicas=2
"""


def member(
    etcd: Etcd,
    place: Path,
    number: int,
    arguments: list[str] | None = None,
    host: Host = HERE,
) -> BrokerProcess:
    """Describe broker ``number`` of the cluster in this etcd."""
    url = etcd.url("bench")
    metadata = f"etcd://{','.join(url.endpoints)}/{url.name}"
    return BrokerProcess(
        place / f"broker-{number}",
        settings=SETTINGS,
        host=host.address,
        within=host.within,
        arguments=["--metadata", metadata, "--node-id", str(number), *(arguments or [])],
    )


class Cluster:
    """Brokers 1, 2 and 3."""

    def __init__(self, brokers: list[BrokerProcess]) -> None:
        """They run."""
        self.brokers = brokers
        self.address = ",".join(each.address for each in brokers)
        self._admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic with a replica on each broker, and wait until all are in sync."""
        topic = NewTopic(name, partitions, BROKERS)
        self._admin.create_topics([topic], operation_timeout=DEADLINE_S)[name].result(DEADLINE_S)
        self.wait_in_sync(name, partitions)

    def wait_in_sync(self, topic: str, partitions: int = 1) -> None:
        """Return when every partition has a leader and all of its replicas are in sync."""

        def is_so() -> bool:
            found = self._partitions(topic)
            return len(found) == partitions and all(
                each.leader > 0 and len(each.isrs) == BROKERS for each in found
            )

        wait_until(is_so, deadline_s=DEADLINE_S, what=f"all replicas of {topic} are in sync")

    def leader(self, topic: str) -> BrokerProcess:
        """Return the broker that leads partition 0."""
        return self.brokers[self._partitions(topic)[0].leader - 1]

    def cpu_s(self) -> float:
        """CPU seconds of all brokers."""
        return sum(cpu_s(each.pid) for each in self.brokers)

    def _partitions(self, topic: str) -> list[PartitionMetadata]:
        found = self._admin.list_topics(topic, timeout=DEADLINE_S).topics[topic]
        return list(found.partitions.values())


@contextmanager
def running_cluster(
    place: Path, hosts: Sequence[Host] = (HERE,) * BROKERS, etcd_host: Host = HERE
) -> Iterator[Cluster]:
    """Run an etcd and three brokers until the block ends."""
    with ExitStack() as stack:
        etcd = stack.enter_context(running_etcd(hosts=[etcd_host]))
        yield Cluster(
            [
                stack.enter_context(member(etcd, place, number, host=host))
                for number, host in enumerate(hosts, 1)
            ]
        )
