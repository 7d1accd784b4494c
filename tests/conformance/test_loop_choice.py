"""The tests' switch between event loops reaches broker processes; users get uvloop's."""

import re
from pathlib import Path

import pytest

from tests.support.broker import BrokerProcess
from tests.support.loops import CHOSEN, REAL


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no /proc: what a process loads")
@pytest.mark.parametrize("name", REAL)
def test_a_broker_process_runs_on_the_chosen_loop(name: str, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", environment={CHOSEN: name}) as broker:
        loaded = Path(f"/proc/{broker.pid}/maps").read_text(encoding="utf-8")
    assert bool(re.search(r"/uvloop/loop\.\S*\.so", loaded)) is (name == "uvloop")
