"""The command line as a script calls it."""

import json
import os
import subprocess
import sys
from typing import Any

DEADLINE_S = 30.0
TERMINAL = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")  # by each, a pipe is drawn on
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in TERMINAL} | {
    "NO_COLOR": "1",
    "COLUMNS": "120",
}


class Cli:
    """Runs ``fencelog`` against one broker."""

    def __init__(self, address: str) -> None:
        """Point it at this broker, as a user's environment would."""
        self.environment = {**ENVIRONMENT, "FENCELOG_BOOTSTRAP_SERVERS": address}

    def run(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run and return, whatever the status."""
        return subprocess.run(
            [sys.executable, "-m", "fencelog", *arguments],
            input=stdin,
            capture_output=True,
            timeout=DEADLINE_S,
            env=self.environment,
            check=False,
        )

    def out(self, *arguments: str, stdin: bytes = b"") -> bytes:
        """Stdout of a run that must succeed."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    def json(self, *arguments: str, stdin: bytes = b"") -> Any:
        """Stdout of a run that must succeed, as the one JSON document that it is."""
        return json.loads(self.out(*arguments, stdin=stdin))

    def refused(self, status: int, *arguments: str, stdin: bytes = b"") -> str:
        """Stderr of a run that must end with this status and print no data."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == status, (done.returncode, done.stderr.decode())
        assert done.stdout == b""
        return done.stderr.decode()
