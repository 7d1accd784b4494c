"""A real broker in a process of its own, which a test may kill at any moment.

The address comes from the one line that a ready broker writes to stderr, so a test waits for the
fact and not for a time. All of stderr is kept and shown when something goes wrong.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.loops import on_chosen_loop

READY = re.compile(r"listening on (?P<host>\S+):(?P<port>\d+)")
START_DEADLINE_S = 20.0
STOP_DEADLINE_S = 20.0


class BrokerProcess:
    """``fencelog serve`` on one data directory; start, kill, terminate and restart it.

    ``port`` 0 takes a free port at the first start and keeps it over restarts. A context manager:
    entering starts it, leaving kills what still runs.
    """

    def __init__(
        self,
        data_dir: Path | str,
        *,
        durability: str = "os",
        port: int = 0,
        host: str = "127.0.0.1",
        settings: str = "",
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        within: Sequence[str] = (),
    ) -> None:
        """Describe the broker; nothing runs yet.

        ``settings``: lines of a server.properties. ``within``: the command that runs it elsewhere.
        """
        self.data_dir = Path(data_dir)
        self.durability = durability
        self.host = host
        self.port = port
        self._settings: Path | None = None
        if settings:
            self._settings = self.data_dir.with_name(f"{self.data_dir.name}.properties")
            self._settings.write_text(settings, encoding="ascii")
        self.arguments = list(arguments)
        self._within = list(within)
        self.environment = dict(environment or {})
        self.start_deadline_s = START_DEADLINE_S
        self.stop_deadline_s = STOP_DEADLINE_S
        self.exit_statuses: list[int] = []
        self._process: subprocess.Popen[str] | None = None
        self._pump: threading.Thread | None = None
        self._lines: list[str] = []
        self._grew = threading.Condition()

    @property
    def address(self) -> str:
        """``host:port`` to bootstrap from; known after the first start."""
        assert self.port != 0, "the broker was never started"
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the running broker."""
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def stderr(self) -> str:
        """Everything the broker wrote to stderr, over all its processes."""
        with self._grew:
            return "".join(self._lines)

    def command(self) -> list[str]:
        """The command line that ``start`` runs."""
        command = [*self._within, sys.executable, "-m", "fencelog", "serve"]
        command += ["--data-dir", str(self.data_dir)]
        command += ["--listen", f"{self.host}:{self.port}", "--durability", self.durability]
        if self._settings is not None:
            command += ["--config", str(self._settings)]
        return command + self.arguments

    def start(self) -> Self:
        """Start; returns once the broker says that it is ready, or raises with what it wrote."""
        assert not self.running, "the broker is running already"
        position = len(self._lines)
        self._process = subprocess.Popen(
            self.command(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=on_chosen_loop({**os.environ, **self.environment}),
        )
        self._pump = threading.Thread(target=self._read_stderr, args=(self._process,), daemon=True)
        self._pump.start()
        ready = self.wait_for_line(READY, since=position, deadline_s=self.start_deadline_s)
        self.port = int(ready["port"])
        return self

    def wait_for_line(
        self, pattern: re.Pattern[str], *, since: int = 0, deadline_s: float = 10.0
    ) -> re.Match[str]:
        """Return the first match among the stderr lines from number ``since`` on."""
        ends_at = time.monotonic() + deadline_s
        with self._grew:
            while True:
                for line in self._lines[since:]:
                    if found := pattern.search(line):
                        return found
                left_s = ends_at - time.monotonic()
                if left_s <= 0 or not self.running:
                    break
                self._grew.wait(min(left_s, 0.1))
        status = None if self._process is None else self._process.poll()
        self.kill()
        raise AssertionError(
            f"no line {pattern.pattern!r} on stderr (exit status {status}):\n{self.stderr}"
        )

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone. Nothing happens where none runs."""
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """SIGTERM, wait for the clean stop, and return the exit status."""
        return self._end(signal.SIGTERM)

    def restart(self, *, kill: bool = True) -> Self:
        """Stop (by SIGKILL by default), start on the same port and directory."""
        if kill:
            self.kill()
        else:
            self.terminate()
        return self.start()

    def _end(self, how: signal.Signals) -> int:
        process, pump = self._process, self._pump
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(how)
        try:
            status = process.wait(self.stop_deadline_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(
                f"no stop within {self.stop_deadline_s} s of {how.name}:\n{self.stderr}"
            ) from None
        if pump is not None:
            pump.join()
        self._process = None
        self.exit_statuses.append(status)
        return status

    def _read_stderr(self, process: "subprocess.Popen[str]") -> None:
        assert process.stderr is not None
        with process.stderr as lines:
            for line in lines:
                with self._grew:
                    self._lines.append(line)
                    self._grew.notify_all()

    def __enter__(self) -> Self:
        """Start it if it does not run yet."""
        return self if self.running else self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Kill what still runs; a failing test shows what the broker wrote."""
        self.kill()
        if error is not None:
            sys.stderr.write(f"--- stderr of the broker on {self.data_dir}\n{self.stderr}---\n")
