"""The guide's cluster from nothing, in its own commands."""

import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support.etcd import Etcd, free_ports

ROOT = Path(__file__).parent.parent.parent
GUIDE = (ROOT / "docs/guide/cluster.md").read_text(encoding="utf-8")
DEADLINE_S = 100.0
PORTS = ("9092", "9093", "9094")
# What a reader does by looking: wait until the brokers' lines have come.
END = "trap 'kill -9 $(jobs -p) || true' EXIT"
READY = """
for number in 1 2 3; do until grep -q 'listening on' "b$number.log"; do sleep 0.05; done; done
"""


def commands() -> list[str]:
    """The guide's command lines, in order."""
    section = GUIDE.partition("## From nothing")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```console\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return [line[2:] for block in blocks for line in block.splitlines() if line[:2] == "$ "]


def script(etcd: Etcd) -> str:
    """The commands on this machine's ports; etcd runs already, and so does the package."""
    lines = []
    for line in commands():
        if line.startswith(("etcd ", "pip ")):
            lines.append("sleep 1000 &" if line.startswith("etcd") else ":")
        elif line.startswith("fencelog serve"):
            number = re.search(r"--node-id (\d)", line)
            assert number is not None
            lines.append(line.replace(" &", f" 2> b{number[1]}.log &"))
        else:
            lines.append(line)
    text = "\n".join(lines)
    text = text.replace("fencelog topic create", f"{READY}\nfencelog topic create", 1)
    for port, free in zip(
        ("2379", *PORTS), (etcd.members[0].client_port, *free_ports(3)), strict=True
    ):
        text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{free}")
        if port == PORTS[0]:
            text = f"export FENCELOG_BOOTSTRAP_SERVERS=127.0.0.1:{free}\n{text}"
    return f"set -em\n{END}\n{text}"


def end(shell: "subprocess.Popen[bytes]") -> None:
    """Kill the shell and all that it has started."""
    started = psutil.Process(shell.pid).children(recursive=True) if shell.poll() is None else []
    for each in started:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    shell.kill()
    shell.wait()


@pytest.mark.timeout(DEADLINE_S + 20)
def test_the_cluster_of_the_guide_comes_out_as_it_is_shown(etcd: Etcd, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with (tmp_path / "errors").open("wb") as errors:
        shell = subprocess.Popen(
            ["bash", "-c", script(etcd)],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    try:
        out = shell.communicate(timeout=DEADLINE_S)[0].decode()
    finally:
        end(shell)
    files = [tmp_path / "errors", *sorted(tmp_path.glob("b*.log"))]
    said = "\n".join(each.read_text() for each in files)
    assert shell.returncode == 0, said
    assert out.splitlines()[-1] in GUIDE, said
    assert out.endswith("ada hello\n"), said
