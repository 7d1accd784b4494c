"""What the guide of streams shows is what happens."""

import asyncio
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

import fencelog.aio
from tests.cli.test_readme import shell
from tests.support.broker import BrokerProcess

GUIDE = (Path(__file__).parents[2] / "docs/guide/streams.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


def test_the_commands_come_out_as_they_are_shown(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # R1, R2, R8, R10
    monkeypatch.setenv("PYTHONIOENCODING", "utf-8")
    monkeypatch.setenv("COLUMNS", "80")
    (chart,) = blocks("text")
    shown = "\n".join(blocks("console"))
    commands = [line[2:] for line in shown.splitlines() if line.startswith("$ ")]
    seen = 0
    for line in commands:
        out = shell(line.replace("noon.json", str(tmp_path / "noon.json")), broker)
        if " describe " in line:
            assert out.startswith(chart)
            seen += 1
        if " read " in line:
            assert f"$ {line}\n{out}" in shown
            seen += 1
    assert seen == 2


def test_the_program_that_is_shown_reads_what_it_writes(
    broker: BrokerProcess, capsys: pytest.CaptureFixture[str]
) -> None:  # R6
    (shown,) = blocks("python")
    program = f"async def main():\n{textwrap.indent(shown, '    ')}"
    names: dict[str, Any] = {}
    exec(program.replace("localhost:9092", broker.address), {"fencelog": fencelog}, names)
    asyncio.run(names["main"]())
    assert capsys.readouterr().out == "b'AA' b'on time'\n"
