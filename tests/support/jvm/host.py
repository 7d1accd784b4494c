"""A JVM that stays: it runs Kafka's command-line programs, one at a time."""

import base64
import os
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote_plus

from fencelog.spark.java import find_java_home
from tests.support.closing import Closing

SOURCES = Path(__file__).parent / "java"
"""A folder for each section of ``jars.lock``: our own programs on that class path."""
COMMAND_DEADLINE_S = 60.0
LIGHT = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx384m")
"""These processes live for seconds: they gain nothing from the second compiler."""


class JdkMissingError(Exception):
    """There is no Java here that can compile; the text says what was looked at."""


@dataclass(frozen=True)
class Outcome:
    """What a program came to: its exit status and all that it wrote."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """The lines of stdout that are not empty."""
        return [line for line in self.out.splitlines() if line.strip()]


def jdk_tool(name: str) -> str:
    """The path of ``java`` or ``javac`` of the Java 17 or newer that is here.

    Raises JavaNotFoundError, and JdkMissingError where that Java is one without a compiler.
    """
    home = find_java_home(os.environ)
    if not (home / "bin" / "javac").exists():
        raise JdkMissingError(f"{home} has no javac; apt-get install openjdk-17-jdk-headless")
    return str(home / "bin" / name)


def compiled(class_path: str, sources_in: Path, to: Path) -> str:
    """Compile the Java programs of a folder into ``to``; the class path of them and their jars."""
    sources = [str(path) for path in sorted(sources_in.glob("*.java"))]
    compiler = [jdk_tool("javac"), "-J-XX:TieredStopAtLevel=1", "-Xlint:all,-serial", "-Werror"]
    done = subprocess.run(
        [*compiler, "-proc:none", "-cp", class_path, "-d", str(to), *sources],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return os.pathsep.join([str(to), class_path])


def java_command(class_path: str, main: str, *arguments: str, log: Path) -> list[str]:
    """The command line of a program; what its clients log goes to a file."""
    logging = [
        f"-Dorg.slf4j.simpleLogger.logFile={log}",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=info",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
        "-Dlog4j2.level=WARN",
    ]
    return [jdk_tool("java"), *LIGHT, *logging, "-cp", class_path, main, *arguments]


class ToolHost(Closing):
    """One JVM that runs main classes. A context manager; leaving ends it."""

    def __init__(self, class_path: str, log: Path) -> None:
        """Start it on a class path that ``compiled`` made."""
        self.log = log
        self._process = subprocess.Popen(
            java_command(class_path, "ToolHost", log=log),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(
        self, main: str, *arguments: str | Path, stdin: str = "", deadline_s: float | None = None
    ) -> Outcome:
        """Run a main class to its end and say what it came to.

        AssertionError past the deadline: that JVM is lost, as whoever waits in it can't be ended.
        """
        words = [main, stdin, *(str(argument) for argument in arguments)]
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        expired = threading.Event()

        def end() -> None:
            expired.set()
            self._process.kill()

        timer = threading.Timer(deadline_s or COMMAND_DEADLINE_S, end)
        timer.start()
        try:
            self._process.stdin.write(" ".join(quote_plus(word) for word in words) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        finally:
            timer.cancel()
        assert answer, f"{words}: {'no end in time' if expired.is_set() else 'the JVM died'}"
        status, out, err = answer.rstrip("\n").split(" ")
        return Outcome(int(status), _text(out), _text(err))

    def done(self, main: str, *arguments: str | Path, stdin: str = "") -> Outcome:
        """Like ``run``, for what must succeed: AssertionError with all output where it did not."""
        outcome = self.run(main, *arguments, stdin=stdin)
        assert outcome.status == 0, f"{main} {arguments}\n{outcome.out}\n{outcome.err}"
        return outcome

    def close(self) -> None:
        """End the JVM."""
        self._process.kill()
        self._process.communicate()


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode("utf-8", "replace")
