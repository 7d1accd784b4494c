"""The same order as the kernel sees it, where strace is there to show it."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.broker import BrokerProcess

pytestmark = pytest.mark.skipif(
    shutil.which("strace") is None
    or subprocess.run(["strace", "-f", "true"], capture_output=True, check=False).returncode != 0,
    reason="strace is missing or may not trace; test_durability shows the order without it",
)

CALLS = "pwritev,pwritev2,pwrite64,fdatasync,fsync,write,writev,sendto,sendmsg"
LINE = re.compile(r"^\d+\s+(?P<call>\w+)\(\d+<(?P<path>[^>]*)>")
RESUMED = re.compile(r"^(?P<thread>\d+)\s+<\.\.\. (?P<call>\w+) resumed>")
SENDS = ("write", "writev", "sendto", "sendmsg")


@contextmanager
def traced(broker: BrokerProcess, trace: Path) -> Iterator[None]:
    """Have strace look at a running broker."""
    options = ["-f", "-yy", "-s", "0", "-e", f"trace={CALLS}", "-o", str(trace)]
    with subprocess.Popen(
        ["strace", *options, "-p", str(broker.pid)], stderr=subprocess.PIPE, text=True
    ) as strace:
        assert strace.stderr is not None
        try:
            assert "attached" in strace.stderr.readline()
            yield
        finally:
            strace.terminate()


def ended_calls(trace: Path) -> list[tuple[str, str]]:
    """Name and file of each call, in the order in which they ended."""
    calls = []
    begun: dict[tuple[str, str], str] = {}
    for line in trace.read_text(errors="replace").splitlines():
        if found := LINE.match(line):
            call, path = found["call"], found["path"]
            if line.endswith("<unfinished ...>"):
                begun[line.split()[0], call] = path
            else:
                calls.append((call, path))
        elif found := RESUMED.match(line):
            calls.append((found["call"], begun.pop((found["thread"], found["call"]), "?")))
    return calls


def test_an_acknowledged_record_was_written_synced_and_then_answered(
    fsync_broker: BrokerProcess, tmp_path: Path
) -> None:  # D1
    from confluent_kafka import Producer

    trace = tmp_path / "strace"
    with traced(fsync_broker, trace):
        settings = {"bootstrap.servers": fsync_broker.address, "log_level": 0}
        producer = Producer({**settings, "enable.idempotence": True})
        for _ in range(5):
            producer.produce("t", b"x", partition=0)
            assert producer.flush(20) == 0
    calls = ended_calls(trace)
    written = [
        at
        for at, (call, path) in enumerate(calls)
        if call.startswith("pwrite") and path.endswith("/t-0/00000000000000000000.log")
    ]
    assert len(written) == 5
    for at in written:
        _, log = calls[at]
        after = [
            call if path == log else "answer"
            for call, path in calls[at + 1 :]
            if path == log or (call in SENDS and path.startswith("TCP"))
        ]
        assert after[:2] == ["fdatasync", "answer"]
    # The topic made on demand and the block of producer ids are in SQLite's journal by then.
    assert any(
        call in ("fdatasync", "fsync") and path.endswith("metadata.sqlite-wal")
        for call, path in calls[: written[0]]
    )
