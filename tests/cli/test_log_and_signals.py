"""The log and the signals of a broker process: who reads nothing or forges lines, stops nothing."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from fencelog.client.blocking import Client
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.headers import RequestHeader, request_header
from tests.support.broker import BrokerProcess

DEADLINE_S = 30.0
BETWEEN_S = 0.002
ADDRESS = re.compile(r"listening on ([0-9.]+):([0-9]+)")


def bad_frame(address: tuple[str, int], source: str, client_id: str) -> None:
    """A request without its body, which closes its connection with a line in the log."""
    header = request_header(RequestHeader(ApiKey.METADATA, 1, 1, client_id))
    with socket.create_connection(address, DEADLINE_S, source_address=(source, 0)) as connection:
        connection.sendall(len(header).to_bytes(4, "big") + header)
        assert connection.recv(1) == b""


def test_a_broker_whose_stderr_nobody_reads_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fencelog", "serve", "--data-dir", str(tmp_path / "data")]
    process = subprocess.Popen([*command, "--listen", "127.0.0.1:0"], stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        line = process.stderr.readline().decode()
        found = ADDRESS.search(line)
        assert found is not None, line
        address = found[1], int(found[2])
        for number in range(600):  # of as many peers as it takes to fill the pipe twice
            bad_frame(address, f"127.0.{number // 250 + 1}.{number % 250 + 1}", "x" * 90)
        with Client(f"{address[0]}:{address[1]}") as client:
            client.create_topic("t", 1)
        process.terminate()
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_client_id_forges_no_line_and_a_flood_is_counted(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        address = broker.host, broker.port
        forged = "a\n2026-01-01 00:00:00,000 ERROR fencelog.node: the disk is gone\x1b[2J"
        for _ in range(50):
            bad_frame(address, "127.0.0.1", forged)
        assert broker.terminate() == 0
        closed = [line for line in broker.stderr.splitlines() if "ERROR fencelog.node" in line]
        assert len(closed) == 10
        assert all("WARNING" in line and "a\\n2026" in line for line in closed)
        assert "\x1b" not in broker.stderr
        assert "40 more lines like this" in broker.stderr


@pytest.mark.parametrize("name", ["SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT"])
def test_a_signal_that_is_no_stop_stops_nothing(tmp_path: Path, name: str) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        os.kill(broker.pid, signal.Signals[name])
        told = "stacks of" if name == "SIGQUIT" else "is ignored"
        broker.wait_for_line(re.compile(f"{name}.*{told}"))
        with Client(broker.address) as client:
            client.create_topic("t", 1)
        assert broker.terminate() == 0


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_no_further_signal_changes_the_status_of_a_stop(tmp_path: Path, name: str) -> None:
    command = [sys.executable, "-m", "fencelog", "serve", "--data-dir", str(tmp_path / "data")]
    process = subprocess.Popen([*command, "--listen", "127.0.0.1:0"], stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        assert ADDRESS.search(process.stderr.readline().decode())
        process.terminate()
        ends_at = time.monotonic() + DEADLINE_S
        while process.poll() is None and time.monotonic() < ends_at:
            process.send_signal(signal.Signals[name])
            with suppress(subprocess.TimeoutExpired):
                process.wait(BETWEEN_S)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def test_a_dump_has_the_stacks_of_threads_and_tasks(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        os.kill(broker.pid, signal.SIGQUIT)
        broker.wait_for_line(re.compile(r"    \| task .*LogFlusher"))
        broker.wait_for_line(re.compile(r"    \| thread [0-9]+"))
        assert broker.terminate() == 0
