"""``fencelog serve`` as a broker of a cluster: what it needs of etcd, and what it does without."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from fencelog.client.blocking import Client
from fencelog.errors import RequestError
from tests.support.broker import BrokerProcess
from tests.support.etcd import Etcd, free_ports
from tests.support.waiting import wait_until

DEADLINE_S = 60.0
SOON_S = 15.0
"""Less than a broker that stops would wait for others to lead in its place."""
SESSION = "broker.session.timeout.ms=2000\n"


def member(etcd: Etcd, folder: Path, number: int, settings: str = "") -> BrokerProcess:
    """A broker of the cluster ``c``."""
    url = etcd.url("c")
    return BrokerProcess(
        folder / f"b{number}",
        settings=settings,
        arguments=[
            "--metadata",
            f"etcd://{','.join(url.endpoints)}/{url.name}",
            "--node-id",
            str(number),
        ],
    )


def test_without_etcd_it_does_not_start_and_says_which_one_it_asked(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    flags = ["--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--node-id", "1"]
    metadata = ["--metadata", f"etcd://127.0.0.1:{port}/c"]
    done = subprocess.run(
        [sys.executable, "-m", "fencelog", "serve", *flags, *metadata],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 1
    assert f"fencelog: cannot serve {tmp_path}/data: etcd at 127.0.0.1:{port}: " in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_while_etcd_is_away_it_stops_to_answer_and_takes_part_again_when_it_is_back(
    own_etcd: Etcd, tmp_path: Path
) -> None:
    (etcd,) = own_etcd.members
    with member(own_etcd, tmp_path, 1, SESSION) as broker:
        address = broker.address
        with Client(address) as client:
            client.create_topic("t")
        etcd.kill()
        broker.wait_for_line(re.compile("takes part again"), deadline_s=SOON_S)
        etcd.start()
        etcd.wait()

        def is_there() -> bool:
            try:
                with Client(address) as client:
                    return [each.name for each in client.topics(["t"])] == ["t"]
            except RequestError:
                return False

        wait_until(is_there, deadline_s=DEADLINE_S, what="the broker answers again")
        assert broker.terminate() == 0


def test_brokers_that_stop_together_do_not_wait_for_each_other(
    own_etcd: Etcd, tmp_path: Path
) -> None:
    with (
        member(own_etcd, tmp_path, 1) as first,
        member(own_etcd, tmp_path, 2) as second,
        member(own_etcd, tmp_path, 3) as third,
    ):
        with Client(first.address) as client:
            client.create_topic("t", 6, replication=3)
        first.kill()
        for each in (second, third):
            each.stop_deadline_s = SOON_S
            os.kill(each.pid, signal.SIGTERM)
        assert [each.terminate() for each in (second, third)] == [0, 0]


def refused(etcd: Etcd, folder: Path, number: int) -> str:
    """Start a broker that must not come to listen; return its one line."""
    broker = member(etcd, folder, number)
    done = subprocess.run(
        broker.command(), capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.splitlines()
    return line


def test_another_directory_with_the_number_of_a_live_broker_takes_nothing_from_it(
    own_etcd: Etcd, tmp_path: Path
) -> None:
    with member(own_etcd, tmp_path, 1) as first, member(own_etcd, tmp_path, 2) as live:
        with Client(first.address) as client:
            client.create_topic("t", 4, replication=2)
            before = client.describe_topic("t").partitions
            assert {each.leader for each in before} == {1, 2}
            assert all(len(each.in_sync) == len(each.replicas) for each in before)
            elsewhere = tmp_path / "elsewhere"
            ignored = shutil.ignore_patterns("*.tmp")
            shutil.copytree(live.data_dir, tmp_path / "copied" / "b2", ignore=ignored)
            for folder in (elsewhere, tmp_path / "copied"):
                line = refused(own_etcd, folder, 2)
                assert line.startswith(
                    f"fencelog: cannot serve {folder}/b2: broker 2 is registered"
                )
                assert live.address in line
                assert "another node.id" in line
            assert client.describe_topic("t").partitions == before
        assert "has lost its lease" not in live.stderr


def test_a_silent_broker_does_not_hold_up_what_any_other_can_answer(
    own_etcd: Etcd, tmp_path: Path
) -> None:
    with (
        member(own_etcd, tmp_path, 1) as silent,
        member(own_etcd, tmp_path, 2) as second,
        member(own_etcd, tmp_path, 3) as third,
    ):
        addresses = ",".join(each.address for each in (silent, second, third))
        with Client(addresses, request_timeout_s=SOON_S) as client:
            client.create_topic("t", 1, replication=3)
            os.kill(silent.pid, signal.SIGSTOP)
            try:
                # Its connection is open; a call that waits for it ends with an error.
                assert [each.name for each in client.topics(["t"])] == ["t"]
                with Client(addresses, request_timeout_s=SOON_S) as other:
                    assert [each.name for each in other.topics(["t"])] == ["t"]
            finally:
                os.kill(silent.pid, signal.SIGCONT)
