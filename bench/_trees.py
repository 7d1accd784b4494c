"""The sources of a broker that a script compares: those of an earlier commit, or compiled ones."""

import compileall
import shutil
import subprocess
from pathlib import Path

from bench._report import ROOT
from tests.support.broker import BrokerProcess
from tools.compile_hook import compile_into


def at_commit(commit: str, place: Path) -> Path:
    """Take the sources out of git."""
    place.mkdir()
    packed = subprocess.run(
        ["git", "archive", commit, "src"], cwd=ROOT, check=True, capture_output=True
    )
    subprocess.run(["tar", "-x", "-C", str(place)], input=packed.stdout, check=True)
    return place / "src"


def with_bytecode(source: Path) -> None:
    """Compile sources to bytecode, as an installation does: their first start need not."""
    assert compileall.compile_dir(source, quiet=1)


def compiled(place: Path) -> Path:
    """Compile the sources as they are now (ADR 17)."""
    shutil.copytree(ROOT / "src", place / "src")
    for library, name in compile_into(ROOT / "src", place).items():
        shutil.copy(library, place / "src" / name)
    return place / "src"


def broker_of(source: Path, data_dir: Path) -> BrokerProcess:
    """Describe a broker that runs these sources."""
    return BrokerProcess(data_dir, environment={"PYTHONPATH": str(source)})
