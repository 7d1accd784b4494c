"""Standard streams that are closed, or that nobody reads: the exit status stays what it means."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.support.broker import BrokerProcess
from tests.support.cli import DEADLINE_S, Cli

SEND = '"process": "w", "steps": [["send", "t/0", 17'
POLL = '"process": "final", "steps": [["poll"'
GOOD = f"""{{"type": "invoke", "id": 1, "time": 1, {SEND}]]}}
{{"type": "ok", "id": 1, "time": 2, {SEND}, 0]]}}
{{"type": "invoke", "id": 1, "time": 3, {POLL}]]}}
{{"type": "ok", "id": 1, "time": 4, {POLL}, {{"t/0": [[0, 17]]}}]]}}
"""
BAD = GOOD.replace('"ok", "id": 1, "time": 2', '"failed", "id": 1, "time": 2')
CLOSED = ("<&-", ">&-", "2>&-", "<&- >&- 2>&-")


@pytest.fixture
def cli() -> Cli:
    """The command line; there is no broker at its address."""
    return Cli("127.0.0.1:1")


@pytest.fixture
def unread() -> Iterator[int]:
    """A pipe whose reader has closed it."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.fixture
def histories(tmp_path: Path) -> dict[str, str]:
    """Files to check, by the outcome."""
    for name, text in (("good", GOOD), ("bad", BAD)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    return {name: str(tmp_path / name) for name in ("good", "bad")}


def shell(cli: Cli, redirected: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = shlex.join([sys.executable, "-m", "fencelog", *arguments])
    return subprocess.run(
        ["bash", "-c", f"exec {command} {redirected}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=DEADLINE_S,
        env=cli.environment,
        check=False,
    )


@pytest.mark.parametrize("closed", CLOSED)
@pytest.mark.parametrize(("outcome", "status"), [("good", 0), ("bad", 1)])
def test_a_closed_stream_changes_no_status(
    cli: Cli, histories: dict[str, str], outcome: str, status: int, closed: str
) -> None:
    done = shell(cli, closed, "check", histories[outcome])
    assert (done.returncode, done.stderr) == (status, b"")
    assert (done.stdout == b"") is (">&- " in f"{closed} " and not closed.startswith("2"))


@pytest.mark.parametrize("closed", CLOSED)
def test_an_error_has_its_status_over_a_closed_stream(cli: Cli, closed: str) -> None:
    done = shell(cli, closed, "topic", "list", "-X", "request.timeout.ms=500")
    assert done.returncode == 3
    assert b"Traceback" not in done.stderr


def test_no_file_gets_the_number_of_a_closed_stream(
    shared_broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    # A shell's own redirection would be one of the three.
    program = (
        "import os, pathlib, sys\n"
        "links = [os.readlink(f'/proc/self/fd/{n}') for n in range(3)]\n"
        "pathlib.Path(sys.argv[1]).write_text(' '.join(links))"
    )
    found = tmp_path / "links"
    command = ("own", "claim", topic, "--", sys.executable, "-c", program, str(found))
    done = shell(Cli(shared_broker.address), "<&- >&- 2>&-", *command)
    assert done.returncode == 0
    assert found.read_text(encoding="utf-8").split() == ["/dev/null"] * 3


def test_a_closed_stdin_has_no_records(shared_broker: BrokerProcess, topic: str) -> None:
    cli = Cli(shared_broker.address)
    cli.out("topic", "create", topic)
    done = shell(cli, "<&-", "topic", "produce", topic)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b'"records": 0' in done.stdout


@pytest.mark.parametrize(("outcome", "status"), [("good", 0), ("bad", 1)])
def test_a_pipe_that_nobody_reads_changes_no_status(
    cli: Cli, histories: dict[str, str], unread: int, outcome: str, status: int
) -> None:
    command = [sys.executable, "-m", "fencelog", "check", histories[outcome]]
    done = subprocess.run(
        command, stdout=unread, stderr=subprocess.PIPE, timeout=DEADLINE_S, check=False
    )
    assert (done.returncode, done.stderr) == (status, b"")


def test_an_error_that_nobody_reads_has_its_status(cli: Cli, unread: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fencelog", "topic", "list", "-X", "request.timeout.ms=500"],
        stdout=unread,
        stderr=unread,
        timeout=DEADLINE_S,
        env=cli.environment,
        check=False,
    )
    assert done.returncode == 3


def run_program(program: str, stdout: int | IO[bytes]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", program],
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=DEADLINE_S,
        check=False,
    )


@pytest.mark.parametrize("form", ["json", "table"])
def test_rows_that_nobody_reads_are_no_error(unread: int, form: str) -> None:
    program = (
        "from fencelog.cli.output import Format, reported_errors, show_rows\n"
        f"with reported_errors(): show_rows([{{'a': 1}}], ('a',), Format('{form}'))"
    )
    done = run_program(program, unread)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_full_disk_is_told_once() -> None:
    program = (
        "from fencelog.cli.output import reported_errors, show_json\n"
        "with reported_errors(): show_json({})"
    )
    with open("/dev/full", "wb") as full:
        done = run_program(program, full)
    assert (done.returncode, done.stderr) == (1, b"error: No space left on device\n")
