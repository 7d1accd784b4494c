"""The demo's cluster: its etcd, and which of its brokers does what now."""

import asyncio
import base64
import json
import shutil
import socket
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from fencelog.client.blocking import Client
from fencelog.client.cluster import TRANSACTION, Cluster, ClusterOptions
from fencelog.wire.own import app_of
from fencelog_demo.plan import Part

BROKERS = 3
NAME = "demo"
ANSWER_S = 5.0
HOW_TO_GET_ETCD = (
    "a cluster needs etcd, and there is none on the PATH; Debian and Ubuntu have it: "
    "apt-get install etcd-server"
)
SETTINGS = {
    "FENCELOG_DEFAULT_REPLICATION_FACTOR": str(BROKERS),
    "FENCELOG_MIN_INSYNC_REPLICAS": "2",
}


def etcd_program() -> str | None:
    """Where etcd is; None if it is not installed."""
    return shutil.which("etcd")


class EtcdAddress:
    """Two free ports of this machine, for one member."""

    def __init__(self) -> None:
        """Choose them."""
        with ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in range(2)]
            for each in sockets:
                each.bind(("127.0.0.1", 0))
            self.clients, self.peers = (f"127.0.0.1:{each.getsockname()[1]}" for each in sockets)

    def command(self, program: str, data: Path) -> list[str]:
        """The command that runs the member."""
        clients, peers = f"http://{self.clients}", f"http://{self.peers}"
        return [
            program,
            f"--data-dir={data}",
            f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
        ]

    def serve_arguments(self, number: int) -> list[str]:
        """What ``fencelog serve`` is given for broker ``number``."""
        return ["--metadata", f"etcd://{self.clients}/{NAME}", "--node-id", str(number)]

    @property
    def is_healthy(self) -> bool:
        """Whether it serves."""
        try:
            with urllib.request.urlopen(f"http://{self.clients}/health", timeout=1) as answer:
                return bool(json.load(answer)["health"] == "true")
        except OSError:
            return False


def node_of(part: Part, bootstrap_server: str, etcd: str, topic: str) -> int:
    """The number of the broker that does this now: it leads the topic's first partition, say.

    Raises FencelogError or OSError if nobody says who it is.
    """
    match part:
        case "leader":
            with Client(bootstrap_server) as client:
                return client.describe_topic(topic).partitions[0].leader
        case "coordinator":
            return _coordinator(bootstrap_server)
        case "controller":
            return _controller(etcd)


def _coordinator(bootstrap_server: str) -> int:
    """Of a transaction of the sink that is open."""
    with Client(bootstrap_server) as client:
        listed = client.list_transactions()
        brokers = {(each.host, each.port): each.node_id for each in client.cluster().brokers}
    ours = [each for each in listed if app_of(each.transactional_id) is not None]
    chosen = min(ours, key=lambda each: each.state != "Ongoing").transactional_id
    return brokers[asyncio.run(_address(bootstrap_server, chosen))]


async def _address(bootstrap_server: str, transactional_id: str) -> tuple[str, int]:
    cluster = Cluster(ClusterOptions(bootstrap_servers=bootstrap_server))
    try:
        deadline = cluster.deadline()
        return await cluster.coordinator_address(TRANSACTION, transactional_id, deadline)
    finally:
        await cluster.close()


def _controller(etcd: str) -> int:
    """Who holds the controller's key; clients are told of any broker that lives (as KRaft does)."""
    key = base64.b64encode(f"{NAME}/controller".encode()).decode()
    asked = json.dumps({"key": key}).encode()
    with urllib.request.urlopen(f"http://{etcd}/v3/kv/range", asked, timeout=ANSWER_S) as answer:
        found: Sequence[dict[str, str]] = json.load(answer)["kvs"]
    return int(json.loads(base64.b64decode(found[0]["value"]))["node_id"])
