"""A stage for the examples of ownership: their processes, which a test may stop and continue.

Also the stores outside the log that they write to: PostgreSQL from Debian, and an object store with
conditional puts from PyPI, each in a process of its own.
"""

import os
import pwd
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from tests.clients.install import NotInstalled, python_environment
from tests.support.waiting import wait_until

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "examples" / "ownership"
STORES = Path(__file__).parent / "python" / "stores.lock"
DEADLINE_S = 60.0
POSTGRES_USER = "nobody"
"""PostgreSQL does not run as root."""


class Program:
    """One process of an example. A context manager: leaving kills what still runs."""

    def __init__(self, *command: str, environment: Mapping[str, str] | None = None) -> None:
        """Start it; its stdout is read as it comes, its stderr is kept."""
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._process = subprocess.Popen(
            command,
            cwd=FOLDER,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **(environment or {})},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._stdin = self._process.stdin
        self._pipes = ((self._process.stdout, self.lines), (self._process.stderr, self.errors))
        self._pumps = [
            threading.Thread(target=self._pump, args=pipe, daemon=True) for pipe in self._pipes
        ]
        for pump in self._pumps:
            pump.start()

    @property
    def text(self) -> str:
        """All of both."""
        return "".join([*self.lines, *self.errors])

    @property
    def running(self) -> bool:
        """Whether it runs, or is stopped."""
        return self._process.poll() is None

    def tell(self, line: str) -> None:
        """Write a line to its stdin."""
        self._stdin.write(f"{line}\n")
        self._stdin.flush()

    def says(self, pattern: str, *, times: int = 1) -> str:
        """Wait until it has said this; returns the last line that has it."""

        def found() -> str:
            assert self.running or any(re.search(pattern, line) for line in self.lines), self.text
            having = [line for line in self.lines if re.search(pattern, line)]
            return having[-1] if len(having) >= times else ""

        return wait_until(found, deadline_s=DEADLINE_S, what=f"{pattern!r} of {self.text}").strip()

    def asked(self, line: str) -> str:
        """What it answers to a line."""
        before = len(self.lines)
        self.tell(line)
        wait_until(
            lambda: len(self.lines) > before or not self.running,
            deadline_s=DEADLINE_S,
            what=f"an answer to {line!r}",
        )
        assert len(self.lines) > before, self.text
        return self.lines[before].strip()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def freeze(self) -> None:
        """Stop it as a long pause does: it notices nothing."""
        self.signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Continue it: a zombie, if another one has taken over."""
        self.signal(signal.SIGCONT)

    def ended(self) -> int:
        """Wait for its end; returns the status."""
        status = self._process.wait(DEADLINE_S)
        for pump in self._pumps:
            pump.join()
        return status

    def kill(self) -> None:
        """End it, also while it is stopped."""
        self._process.kill()
        self.ended()

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Kill it; a failing test shows what it said."""
        self.kill()
        with suppress(BrokenPipeError):
            self._stdin.close()
        for pipe, _ in self._pipes:
            pipe.close()
        if error is not None:
            sys.stderr.write(f"--- {' '.join(map(str, self._process.args))}\n{self.text}---\n")

    def _pump(self, pipe: IO[str], lines: list[str]) -> None:
        lines.extend(pipe)


@contextmanager
def postgresql() -> Iterator[str]:
    """A server of its own, on a socket; yields its URL. Raises NotInstalled without Debian's."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not found:
        raise NotInstalled("there is no PostgreSQL here: apt-get install postgresql")
    programs = found[-1].parent
    user = POSTGRES_USER if os.geteuid() == 0 else None
    # Not below pytest's folders: only their owner may enter them.
    with tempfile.TemporaryDirectory(prefix="fencelog-postgresql-") as name:
        folder = Path(name)
        if user is not None:
            os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
        cluster = ["-D", str(folder / "data")]
        made = subprocess.run(
            [programs / "initdb", *cluster, "--username=fencelog", "--no-sync"],
            cwd=folder,
            user=user,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode != 0:
            raise NotInstalled(f"`initdb` failed: {made.stderr}")
        options = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={folder}"]
        server = subprocess.Popen(
            [programs / "postgres", *cluster, *options, "-c", "fsync=off"],
            cwd=folder,
            user=user,
            stderr=subprocess.DEVNULL,
        )
        try:
            ready = [programs / "pg_isready", "--quiet", "--host", str(folder)]
            wait_until(
                lambda: subprocess.run(ready, check=False).returncode == 0,
                deadline_s=DEADLINE_S,
                what="PostgreSQL",
            )
            yield f"postgresql://fencelog@/postgres?host={folder}"
        finally:
            server.send_signal(signal.SIGINT)  # ends it although clients are connected
            server.wait(DEADLINE_S)


@contextmanager
def object_store(log: Path) -> Iterator[dict[str, str]]:
    """moto's S3 server; yields what tells boto3 where it is. Raises NotInstalled."""
    python = python_environment(STORES)
    with log.open("wb") as file:
        server = subprocess.Popen(
            [python.with_name("moto_server"), "--host", "127.0.0.1", "--port", "0"],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
        try:
            port = wait_until(
                lambda: re.search(r"http://127\.0\.0\.1:(\d+)", log.read_text()),
                deadline_s=DEADLINE_S,
                what="the object store",
            )[1]
            yield {
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
                "AWS_ACCESS_KEY_ID": "a",
                "AWS_SECRET_ACCESS_KEY": "b",
                "AWS_DEFAULT_REGION": "us-east-1",
            }
        finally:
            server.terminate()
            server.wait(DEADLINE_S)
