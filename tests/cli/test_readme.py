"""What the README shows is what happens."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker import BrokerProcess

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
ADDRESS = "127.0.0.1:9092"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def shell(line: str, broker: BrokerProcess, *, deadline_s: float = 60) -> str:
    """Run a line of the README as a shell does, against this broker; returns stdout."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "FENCELOG_BOOTSTRAP_SERVERS": broker.address,
    }
    done = subprocess.run(
        ["bash", "-c", line.replace(ADDRESS, broker.address)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=deadline_s,
        check=False,
    )
    assert done.returncode == 0, f"{line}\n{done.stderr}"
    return done.stdout


def commands(pattern: str) -> list[str]:
    """The command lines that the README shows, those that match."""
    lines = [
        line[2:] for block in blocks("console") for line in block.splitlines() if line[:2] == "$ "
    ]
    return [line for line in lines if re.search(pattern, line)]


def test_the_first_look_comes_out_as_it_is_shown(broker: BrokerProcess) -> None:
    shown = "\n".join(blocks("console"))
    for line in commands(r"fencelog (topic|txn|cluster)"):
        out = shell(line, broker)
        if " consume " in line:
            assert f"$ {line}\n{out}" in shown


def test_the_line_that_a_ready_broker_writes_is_the_one_shown(broker: BrokerProcess) -> None:
    (shown,) = re.findall(r"^fencelog .* listening on .*$", README, re.MULTILINE)
    pattern = re.escape(shown).replace(re.escape(ADDRESS), r"\S+")
    pattern = pattern.replace(re.escape("/home/you/data"), r".+")
    assert re.search(pattern.replace("fsync", broker.durability), broker.stderr), broker.stderr


def test_the_producer_that_is_shown_commits(broker: BrokerProcess) -> None:
    (program,) = [block for block in blocks("python") if "confluent_kafka" in block]
    shell("fencelog topic create quiet", broker)
    exec(program.replace(ADDRESS, broker.address), {})
    seen = shell("fencelog topic consume quiet -e -f '%v' --isolation transactional", broker)
    assert seen == "all of it, or nothing"


def test_the_pipeline_that_is_shown_is_the_example() -> None:
    (shown,) = [block for block in blocks("python") if "def pipeline" in block]
    example = ast.parse((ROOT / "examples/loud.py").read_text(encoding="utf-8")).body[-1]
    (function,) = ast.parse(shown).body
    assert isinstance(example, ast.FunctionDef)
    assert isinstance(function, ast.FunctionDef)
    body = [ast.unparse(statement) for statement in example.body[1:]]
    assert [ast.unparse(statement) for statement in function.body] == body


@pytest.mark.spark
@pytest.mark.slow
def test_the_example_pipeline_raises_its_voice(broker: BrokerProcess, tmp_path: Path) -> None:
    shell("fencelog topic create quiet loud --partitions 3", broker)
    shell("echo 'ada:hello' | fencelog topic produce quiet -K : -X acks=all", broker)
    (line,) = commands(r"fencelog run examples/loud\.py")
    shell(f"{line} --available-now --checkpoint '{tmp_path}/checkpoint'", broker, deadline_s=110)
    seen = shell("fencelog topic consume loud -e -f '%k %v' --isolation transactional", broker)
    assert seen == "ada HELLO"
