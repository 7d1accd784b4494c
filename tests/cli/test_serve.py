"""``fencelog serve``: what an operator reads of settings, and the exit status of those refused."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fencelog.client.blocking import Client
from tests.support.broker import BrokerProcess
from tests.support.server_properties import STOCK

DEADLINE_S = 30.0


def refused(
    tmp_path: Path, text: str, *arguments: str, environment: dict[str, str] | None = None
) -> str:
    """Stderr of a start that must end with status 2 and make no data directory."""
    file = tmp_path / "server.properties"
    file.write_text(text)
    flags = ["--data-dir", str(tmp_path / "data"), "--config", str(file), *arguments]
    done = subprocess.run(
        [sys.executable, "-m", "fencelog", "serve", *flags],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env={**os.environ, **(environment or {})},
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert not (tmp_path / "data").exists()
    return done.stderr.replace(f"{tmp_path}/", "")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "log.retention.ms=7d",
            "fencelog: server.properties, line 1: log.retention.ms='7d': expected a whole number "
            "of milliseconds from -1 to 9223372036854775807; 7 days are 604800000\n",
        ),
        (
            "num.partitions=1\ngroup.fense=required",
            "fencelog: server.properties, line 2: group.fense is not a setting of fencelog; did "
            "you mean group.fence?\n",
        ),
        (
            "listeners=PLAINTEXT://:9092,SSL://:9093",
            "fencelog: server.properties, line 1: listeners='PLAINTEXT://:9092,SSL://:9093': "
            "listener SSL asks for SSL, and there is no TLS and no authentication; write "
            "PLAINTEXT://HOST:PORT, on an address that you trust\n",
        ),
    ],
)
def test_a_setting_that_is_refused_ends_the_start_with_one_line(
    tmp_path: Path, text: str, told: str
) -> None:
    assert refused(tmp_path, text) == told


def test_a_flag_and_a_variable_are_refused_under_their_names(tmp_path: Path) -> None:
    said = refused(tmp_path, "", "--durability", "maybe")
    assert said == "fencelog: --durability='maybe': expected fsync or os\n"
    said = refused(tmp_path, "", environment={"FENCELOG_NODE": "1"})
    assert said.startswith("fencelog: environment: FENCELOG_NODE is not a setting of fencelog")


def test_a_broker_starts_with_the_file_of_kafka_4_and_names_what_has_no_effect(
    tmp_path: Path,
) -> None:
    with BrokerProcess(tmp_path / "data", settings=STOCK) as broker:
        lines = [line for line in broker.stderr.splitlines() if "no effect" in line]
    assert len(lines) == 1
    assert "these settings have no effect here: inter.broker.listener.name, num.net" in lines[0]


FENCELOG = (sys.executable, "-m", "fencelog")
OF_A_CLUSTER = re.compile(
    r"grpc|google\.protobuf|fencelog\.(?:adapters\.(?:etcd|open_etcd)|cluster_node|cli\.cluster_process|replication|"
    r"coordination\.controller\.rules|broker\.(?:replicas|peers|metadata\.cluster))"
)


def test_a_broker_alone_loads_nothing_of_a_cluster(tmp_path: Path) -> None:
    environment = {"PYTHONPROFILEIMPORTTIME": "1"}
    with BrokerProcess(tmp_path / "data", environment=environment) as broker:
        with Client(broker.address) as client:
            client.create_topic("t")
            client.producer(transactional_id="id").close()
        broker.terminate()
        loaded = re.findall(r"^import time:[^|]*\|[^|]*\|\s*(\S+)$", broker.stderr, re.MULTILINE)
    assert "fencelog.node" in loaded
    assert [name for name in loaded if OF_A_CLUSTER.match(name)] == []


def test_dev_runs_a_cluster_in_one_process_and_removes_it_at_the_end() -> None:
    """Three brokers, a record on each, and nothing left on the disk."""
    dev = [*FENCELOG, "dev", "--brokers", "3"]
    with subprocess.Popen(
        dev, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            bootstrap = process.stdout.readline().strip()
            assert len(bootstrap.split(",")) == 3
            with Client(bootstrap) as client:
                assert [each.node_id for each in client.cluster().brokers] == [1, 2, 3]
                client.create_topic("orders")
                assert len(client.describe_topic("orders").partitions[0].replicas) == 3
                for verb, name in (("topic", "by-verb"), ("stream", "split")):
                    subprocess.run(
                        [*FENCELOG, verb, "create", name, "-b", bootstrap],
                        check=True,
                        capture_output=True,
                        timeout=DEADLINE_S,
                    )
                    assert len(client.describe_topic(name).partitions[0].replicas) == 3
                with client.producer() as producer:
                    producer.send("orders", b"one tea")
        finally:
            process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, said
    directories = re.findall(r"data in (\S+), durability os", said)
    assert len(directories) == 3, said
    assert not any(Path(each).parent.exists() for each in directories)


@pytest.mark.parametrize("brokers", ["0", "31", "three", "9" * 5000])
def test_a_number_of_brokers_that_cannot_be_is_refused(brokers: str) -> None:
    dev = [sys.executable, "-m", "fencelog", "dev", "--brokers", brokers]
    done = subprocess.run(dev, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"fencelog: --brokers='{brokers}': expected a whole number from 1 to 30\n"


@pytest.mark.parametrize("brokers", ["1", "2"])
def test_a_port_that_is_taken_is_named_with_what_to_do(brokers: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = ["fencelog", "dev", "--listen", f"127.0.0.1:{port}", "--brokers", brokers]
        done = subprocess.run(
            [sys.executable, "-m", *command],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    assert (done.returncode, done.stdout) == (1, "")
    told = done.stderr.splitlines()[-1]
    # All listen at once; somebody else may have the second one's port.
    assert any(
        told.endswith(
            f": cannot listen on 127.0.0.1:{each}: address already in use, perhaps by another "
            "broker: stop that one, or choose another port with --listen (port 0 is a free one)"
        )
        for each in range(port, port + int(brokers))
    )
    assert "Traceback" not in done.stderr
