"""The Java quickstarts, run by the commands that their guide prints."""

import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fencelog.client.blocking import Client
from fencelog.types import TopicPartition
from tests.support.broker import BrokerProcess
from tests.support.jvm.host import jdk_tool
from tests.support.jvm.jars import class_path
from tests.support.waiting import wait_until

FOLDER = Path(__file__).parents[2] / "examples" / "clients"
COMMAND = re.compile(r"^java -cp .*$", re.MULTILINE)
COUNT = 10
DEADLINE_S = 90.0


@pytest.fixture
def printed(tmp_path: Path, examples: str, fsync_broker: BrokerProcess) -> dict[str, list[str]]:
    """The printed commands by the name of their program, for this broker and this Java."""
    (tmp_path / "jars").mkdir()
    for jar in class_path("client").split(":"):
        (tmp_path / "jars" / Path(jar).name).symlink_to(jar)
    (tmp_path / "java").symlink_to(FOLDER / "java")
    text = (FOLDER / "README.md").read_text("utf-8")
    found = {}
    for line in COMMAND.findall(text):
        words = shlex.split(line.replace("localhost:9092", fsync_broker.address))
        found[Path(words[3]).stem] = [jdk_tool("java"), *words[1:]]
    assert set(found) == {path.stem for path in (FOLDER / "java").glob("*.java")}
    return found


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[list[str]], "subprocess.Popen[str]"]]:
    """Starts a command in the folder of the jars; what still runs is killed."""
    running: list[subprocess.Popen[str]] = []

    def go(command: list[str]) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        running.append(process)
        return process

    yield go
    for process in running:
        process.kill()
        process.communicate()


def test_the_java_quickstarts_do_what_their_guide_says(
    printed: dict[str, list[str]],
    start: Callable[[list[str]], "subprocess.Popen[str]"],
    fsync_broker: BrokerProcess,
) -> None:
    hello = [f"hello {number}" for number in range(COUNT)]
    copier = start(printed["CopyExactlyOnce"])
    written, _ = start(printed["Produce"]).communicate(timeout=DEADLINE_S)
    assert [line.split(" ", 1)[1] for line in written.splitlines()] == hello
    consumer = start(printed["Consume"])
    read, _ = consumer.communicate(timeout=DEADLINE_S)
    assert consumer.returncode == 0
    assert [line.split(" ", 2)[2] for line in read.splitlines()] == hello
    with Client(fsync_broker.address) as client:
        source, copies = TopicPartition("greetings", 0), TopicPartition("copies", 0)

        def is_copied() -> bool:
            return client.committed_offsets("copiers").get(source) == COUNT

        wait_until(is_copied, deadline_s=DEADLINE_S, what="the copy", every_s=0.1)
        copier.send_signal(signal.SIGINT)
        said, _ = copier.communicate(timeout=DEADLINE_S)
        assert said.splitlines()[-1] == "bye"
        (end,) = client.offsets([copies], "latest").values()
        copied = [record.value for record in client.fetch(copies, 0, end)]
    assert copied == [value.encode() for value in hello]
