"""The compiled wheel (ADR 17) is built, and passes the tests of what is compiled."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tools.compile_hook import COMPILED

ROOT = Path(__file__).parents[3]
DEADLINE_S = 300
TESTS = (
    "tests/unit/log",
    "tests/unit/storage/test_crashes.py",
    "tests/unit/wire/test_hot.py",
    "tests/unit/wire/test_primitives.py",
    "tests/unit/broker/test_produce.py",
    "tests/unit/broker/test_transactions.py",
)
ORIGINS = """
import importlib, sys
for name in sys.argv[1:]:
    print(importlib.import_module(name).__file__)
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * DEADLINE_S)]


def run(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Run a command in the checkout; return what it printed, or raise with it."""
    ran = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ran.returncode == 0, f"{ran.stdout[-8000:]}\n{ran.stderr[-4000:]}"
    return ran.stdout


@pytest.mark.timeout(DEADLINE_S)
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (apt-get install gcc)")
def test_the_compiled_wheel_passes_the_tests_of_what_is_compiled(tmp_path: Path) -> None:
    # Not optimised: that would take longer than the tests.
    asked = {"HATCH_BUILD_HOOK_ENABLE_CUSTOM": "1", "MYPYC_OPT_LEVEL": "0"}
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)], asked)
    (wheel,) = tmp_path.glob("*.whl")
    assert "none-any" not in wheel.name
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "installed")
    installed = {"PYTHONPATH": str(tmp_path / "installed")}
    compiled = sorted(
        str(path.relative_to(ROOT / "src").with_suffix("")).replace("/", ".")
        for pattern in COMPILED
        for path in (ROOT / "src").glob(pattern)
        if path.name != "__init__.py"
    )
    origins = run([sys.executable, "-c", ORIGINS, *compiled], installed).split()
    assert [each for each in origins if not each.endswith(".so")] == []
    assert all(Path(each).is_relative_to(tmp_path) for each in origins)
    run([sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", *TESTS], installed)
