"""The quickstarts run as ``examples/clients/README.md`` prints them."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fencelog.client.blocking import Client
from tests.clients.install import node_of
from tests.support.broker import BrokerProcess
from tests.support.stock import Confluent
from tests.support.waiting import wait_until

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "examples" / "clients"
README = (FOLDER / "README.md").read_text(encoding="utf-8")
DEADLINE_S = 60.0
GREETINGS = sorted(b"hello %d" % number for number in range(10))
NODE = {"kafkajs": "kafkajs", "platformatic": "platformatic", "confluent-javascript": "confluent"}
PYTHON = ("confluent-kafka", "kafka-python", "aiokafka")


def printed(word: str, client: str, address: str) -> list[str]:
    """The lines that name this, on this broker, with topics and groups of this client alone."""
    lines = [
        line
        for block in re.findall(r"^```\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
        if re.search(rf"\b{re.escape(word)}\b", line)
    ]
    text = "\n".join(lines).replace("localhost:9092", address)
    own = re.sub(r"\b(greetings|readers|copies|copiers|greeter)\b", rf"\1-{client}", text)
    return own.splitlines()


def environment(tool: Path) -> dict[str, str]:
    """Ours, with the folder of this tool first on the PATH."""
    return {**os.environ, "PATH": f"{tool.parent}{os.pathsep}{os.environ['PATH']}"}


def shell(line: str, folder: Path, tool: Path) -> str:
    """Run a line as a shell does, in this folder; returns stdout."""
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=folder,
        env=environment(tool),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, f"{line}\n{done.stderr}"
    return done.stdout


def try_out(client: str, broker: BrokerProcess, folder: Path, tool: Path) -> None:
    """Write, read, and copy until all is copied; then interrupt, as its reader would."""
    produce, consume, copy = printed(f"{client}/", client, broker.address)
    assert shell(produce, folder, tool) == "wrote 10\n"
    assert sorted(shell(consume, folder, tool).encode().splitlines()) == GREETINGS
    with Client(broker.address) as admin:
        admin.create_topic(f"copies-{client}", 1)
        command = shlex.split(copy)
        with subprocess.Popen(command, cwd=folder, env=environment(tool)) as copying:
            try:
                wait_until(
                    lambda: sum(admin.committed_offsets(f"copiers-{client}").values()) == 10,
                    deadline_s=DEADLINE_S,
                    what=f"{client} to copy",
                )
            finally:
                copying.kill()
    found = Confluent().read(broker.address, f"copies-{client}")
    assert sorted(each.value or b"" for each in found) == GREETINGS


@pytest.mark.parametrize("client", PYTHON)
def test_the_python_quickstarts_run_as_they_are_printed(
    clients_broker: BrokerProcess, client: str
) -> None:
    try_out(client, clients_broker, FOLDER, Path(sys.executable))


@pytest.mark.parametrize("client", list(NODE))
def test_the_node_quickstarts_run_as_they_are_printed(
    clients_broker: BrokerProcess, installed: Callable[[str], Path], client: str
) -> None:
    where = installed(NODE[client])
    shutil.copytree(FOLDER / client, where / client, dirs_exist_ok=True)  # beside node_modules
    tool = Path(shutil.which(node_of(where)) or "node")
    try_out(client, clients_broker, where, tool)


def test_the_kcat_quickstart_runs_as_it_is_printed(
    clients_broker: BrokerProcess, installed: Callable[[str], Path]
) -> None:
    tool = installed("kcat")
    produce, consume = printed("kcat", "kcat", clients_broker.address)[-2:]
    shell(produce, FOLDER, tool)
    assert sorted(shell(consume, FOLDER, tool).encode().splitlines()) == GREETINGS
