"""``fencelog check`` as a script calls it: a verdict on stdout, and an exit status for it."""

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fencelog.check.verdict import ERRORS, NOTES

SENT = '{"type": "invoke", "id": 1, "process": "w", "time": 1, "steps": [["send", "t/0", 17]]}'
TOLD = '{"type": "ok", "id": 1, "process": "w", "time": 2, "steps": [["send", "t/0", 17, 0]]}'
ASKED = '{"type": "invoke", "id": 1, "process": "final", "time": 3, "steps": [["poll"]]}'
SEEN = (
    '{"type": "ok", "id": 1, "process": "final", "time": 4,'
    ' "steps": [["poll", {"t/0": [[0, 17]]}]]}'
)
GOOD = "\n".join([SENT, TOLD, ASKED, SEEN]) + "\n"
BAD = GOOD.replace('"ok", "id": 1, "process": "w"', '"failed", "id": 1, "process": "w"')


def run(*arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fencelog", "check", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_what_stdout_cannot_encode_is_escaped(form: tuple[str, ...], tmp_path: Path) -> None:
    history = tmp_path / "history.json"
    history.write_text(BAD.replace("t/0", "t\u00f6/0"), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "fencelog", "check", *form, str(history)],
        capture_output=True,
        timeout=30,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 1, done.stderr
    if form:
        assert "t\u00f6" in str(json.loads(done.stdout))
    else:
        assert rb"t\xf6" in done.stdout


ROOT = Path(__file__).parent.parent.parent
GUIDE = (ROOT / "docs/guide/check.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    """The first block of the guide in this language."""
    found = re.search(rf"^```{language}\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    assert found, language
    return found[1]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "history.jsonl"
    path.write_text(GOOD, encoding="utf-8")
    return path


def test_a_valid_history_ends_with_0(file: Path) -> None:
    done = run(file)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("VALID: no anomaly\n")


def test_an_invalid_one_ends_with_1(file: Path) -> None:
    file.write_text(BAD, encoding="utf-8")
    done = run(file)
    assert done.returncode == 1
    assert done.stdout.startswith("INVALID: 1 aborted-read\n")


def test_with_json_stdout_is_one_document(file: Path) -> None:
    file.write_text(BAD, encoding="utf-8")
    done = run(file, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["found"] == {"aborted-read": 1}


def test_a_history_can_be_gzipped_or_come_from_a_pipe(file: Path) -> None:
    plain = run(file).stdout
    zipped = file.with_suffix(".gz")
    zipped.write_bytes(gzip.compress(GOOD.encode()))
    assert run(zipped).stdout == plain
    assert run("-", stdin=GOOD).stdout == plain


def test_a_chart_is_written_beside_the_verdict(file: Path, tmp_path: Path) -> None:
    chart = tmp_path / "chart.svg"
    done = run(file, "--chart", chart)
    assert (done.returncode, done.stderr) == (0, f"chart written to {chart}\n")
    assert chart.read_text(encoding="utf-8").startswith("<svg ")


def test_a_chart_that_cannot_be_written_does_not_look_like_a_verdict(
    file: Path, tmp_path: Path
) -> None:
    done = run(file, "--chart", tmp_path / "none" / "chart.svg")
    assert done.returncode == 2
    assert done.stdout.startswith("VALID: no anomaly\n")
    assert done.stderr.startswith(f"error: --chart: {tmp_path}/none/chart.svg: No such file")


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        (f"{SENT}\nnonsense\n", "line 2: not JSON", "each line is one event"),
        (f"{SENT}\n{SENT}\n", "line 2: operation 1 of w is invoked a second time", "own"),
        (f"{SENT}\n{TOLD}\n", "there is nothing to check", "acknowledged sends"),
        (f"{SENT}\n{TOLD}\n{{", "there is nothing to check", "acknowledged sends"),
        ("", "there is nothing to check", "polls"),
        ("\xff\xfe", "not UTF-8", "as UTF-8"),
    ],
)
def test_an_unreadable_history_ends_with_2_and_a_hint(file: Path, text, what, hint) -> None:
    file.write_bytes(text.encode("latin-1"))
    done = run(file)
    assert done.returncode == 2
    error, advice = done.stderr.splitlines()[-2:]
    assert error.startswith("error: ")
    assert what in error
    assert advice.startswith("hint: ")
    assert hint in advice


def test_a_file_that_is_not_there_ends_with_2(tmp_path: Path) -> None:
    done = run(tmp_path / "none.jsonl")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {tmp_path}/none.jsonl: No such file")


def test_several_files_are_one_history(file: Path, tmp_path: Path) -> None:
    writer, reader = tmp_path / "writer.jsonl", tmp_path / "reader.jsonl"
    writer.write_text(f"{SENT}\n{TOLD}\n", encoding="utf-8")
    reader.write_text(f"{ASKED}\n{SEEN}\n", encoding="utf-8")
    assert run(reader, writer).stdout == run(file).stdout
    writer.write_text(f"{TOLD}\n", encoding="utf-8")
    done = run(reader, writer)
    assert done.returncode == 2
    assert f"error: {writer} line 1: operation 1 of w completes" in done.stderr


def test_the_example_of_the_guide_comes_out_as_it_is_shown(file: Path, tmp_path: Path) -> None:
    file.write_text(block("jsonl"), encoding="utf-8")
    done = run(file, "--chart", tmp_path / "broken.svg")
    command, _, shown = block("console").partition("\n")
    assert command == "$ fencelog check history.jsonl --chart broken.svg"
    assert (done.returncode, done.stdout) == (1, shown)


def test_the_guide_names_each_finding() -> None:
    assert [kind for kind in (*ERRORS, *NOTES) if f"`{kind}`" not in GUIDE] == []
