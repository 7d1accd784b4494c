"""How pytest and the plugin meet: by its entry point or by hand, once, and at no cost."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
USES_THE_BROKER = """
def test_it(fencelog_broker, fencelog_bootstrap):
    assert fencelog_bootstrap == fencelog_broker.bootstrap
    assert fencelog_broker.running
"""
DOES_NOT = """
import sys

def test_it():
    assert "fencelog.testing" in sys.modules
    loaded = {name for name in sys.modules if name.startswith("fencelog")}
    assert loaded == {"fencelog", "fencelog.testing", "fencelog.version"}
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH where pytest finds the entry points that pyproject.toml declares."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    points = project["entry-points"]["pytest11"].items()
    folder = tmp_path / "installed" / "fencelog_declared-0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: fencelog-declared\nVersion: 0\n")
    lines = [f"{name} = {module}\n" for name, module in points]
    (folder / "entry_points.txt").write_text("".join(["[pytest11]\n", *lines]))
    return folder.parent


def run(tmp_path: Path, program: str, *arguments: str, path: Path | None = None) -> str:
    """Run one test file with pytest in a process of its own; returns what it printed."""
    (tmp_path / "test_of_a_user.py").write_text(program)
    places = [str(path)] if path else []
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [*command, *arguments, "test_of_a_user.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*places, str(ROOT / "src")])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        (USES_THE_BROKER, ()),
        (USES_THE_BROKER, ("-p", "fencelog.testing")),
        ('pytest_plugins = ["fencelog.testing"]\n' + USES_THE_BROKER, ()),
        ("from fencelog.testing import Held, LocalBroker\n" + USES_THE_BROKER, ()),
        (USES_THE_BROKER, ("--strict-config", "--strict-markers", "--assert=plain")),
    ],
    ids=["entry point", "by -p too", "by pytest_plugins too", "imported as well", "strict"],
)
def test_its_fixtures_are_there_however_it_was_loaded(
    tmp_path: Path, installed: Path, program: str, arguments: tuple[str, ...]
) -> None:
    said = run(tmp_path, program, *arguments, path=installed)
    assert "1 passed" in said, said


def test_a_run_without_its_fixtures_imports_nothing_of_the_broker(
    tmp_path: Path, installed: Path
) -> None:
    said = run(tmp_path, DOES_NOT, path=installed)
    assert "1 passed" in said, said


def test_it_can_be_turned_off(tmp_path: Path, installed: Path) -> None:
    said = run(tmp_path, USES_THE_BROKER, "-p", "no:fencelog.testing", path=installed)
    assert "fixture 'fencelog_broker' not found" in said, said
