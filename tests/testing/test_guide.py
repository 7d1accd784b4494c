"""Every example of the guide is a test that passes as it is printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
GUIDE = ROOT / "docs/guide/testing.md"
EXAMPLES = 8


def test_the_examples_pass_as_they_are_printed(tmp_path: Path) -> None:
    blocks = re.findall(
        r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert len(blocks) == EXAMPLES
    for number, block in enumerate(blocks):
        (tmp_path / f"test_example_{number}.py").write_text(block, encoding="utf-8")
    # A DeprecationWarning is kafka-python's, about how it reads its schemas.
    strict = ["-W", "error", "-W", "ignore::DeprecationWarning", "--timeout=60"]
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "fencelog.testing", *strict]
    done = subprocess.run(
        [*pytest, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert f"{EXAMPLES} passed" in done.stdout, done.stdout + done.stderr
