"""Ways to a session: a prompt, Spark's shell, Connect, a notebook; each in its own process."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tests.clients.install import packages_of
from tests.spark.conftest import ROOT, Log

GUIDE = ROOT / "docs" / "guide" / "spark.md"
CONNECT = Path(__file__).parent / "python" / "connect.lock"
NOTEBOOK = Path(__file__).parent / "python" / "notebook.lock"
KERNEL = "tests.support.spark.notebook"
CLIENT = ROOT / "tests" / "support" / "spark" / "connect_client.py"
END_S = 300.0
STOPS = "the session stops now"
TABLE = "|  ada|\n|grace|\n"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def words(log: Log, fresh_name: Callable[[str], str]) -> str:
    name = log.topic(fresh_name("words"), 1)
    log.produce(name, ["ada", "grace"])
    return name


def first_lines(log: Log, topic: str) -> str:
    """The guide's, about this topic on the tests' broker."""
    (lines,) = re.findall(
        r"```python\n(from fencelog\.spark\.session .*?)```", GUIDE.read_text(), re.S
    )
    return lines.replace('"127.0.0.1:9092"', f'"{log.servers}"').replace('"words"', f'"{topic}"')


def environment(*removed: str, path: str) -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PYSPARK")}
    return {name: text for name, text in kept.items() if name not in removed} | {"PATH": path}


def typed(command: Sequence[str], text: str, set_: Mapping[str, str]) -> str:
    """What a session shows, after these lines at its prompt.

    As Spark stops, its idle Python worker may lose the connection before it is killed, and then
    PySpark's daemon prints a traceback, whatever the session did: what comes then is left out.
    """
    before_the_end = f"import sys\nprint({STOPS!r}, file=sys.stderr, flush=True)\n"
    done = subprocess.run(
        command,
        input=f"{text}\n{before_the_end}spark.stop()\n",
        env=set_,
        capture_output=True,
        text=True,
        timeout=END_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    shown, stops, _ = done.stderr.partition(STOPS)
    assert stops, done.stderr[-4000:]
    assert "Traceback" not in shown, shown[-4000:]
    return done.stdout


def test_the_guide_s_first_lines_work_in_a_plain_python(log: Log, words: str) -> None:
    # An interpreter that is called by its path: nothing was activated.
    shown = typed([sys.executable, "-i"], first_lines(log, words), environment(path=os.defpath))
    assert TABLE in shown


def test_the_guide_s_first_lines_work_in_spark_s_shell(log: Log, words: str) -> None:
    folder = Path(sys.executable).parent
    activated = environment(path=f"{folder}{os.pathsep}{os.environ['PATH']}")
    assert TABLE in typed([str(folder / "pyspark")], first_lines(log, words), activated)


def test_a_notebook_shows_errors_in_one_paragraph_and_a_stream_s_progress(
    log: Log, words: str, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    stream = f"""
def copy(topic, checkpoint, **options):
    rows = spark.readStream.format("fencelog").option("startingOffsets", "earliest")
    rows = rows.option("kafka.bootstrap.servers", "{log.servers}").option("subscribe", topic)
    rows = rows.options(**options).load().select("key", "value").writeStream.format("fencelog")
    rows = rows.option("kafka.bootstrap.servers", "{log.servers}")
    rows = rows.option("topic", "{log.topic(fresh_name("out"), 1)}")
    rows = rows.option("checkpointLocation", "{tmp_path}/" + checkpoint)
    return rows.trigger(availableNow=True).start()
"""
    cells = [
        first_lines(log, words),
        stream,
        f"query = copy('{words}', 'good')\nquery.awaitTermination(120)",
        "query.lastProgress.numInputRows",
        f"copy('{words}', 'bad', startingOffset='earliest')",
        "copy('no-such-topic', 'missing').awaitTermination()",
        "spark.stop()",
    ]
    done = subprocess.run(
        [sys.executable, "-m", KERNEL, packages_of(NOTEBOOK), json.dumps(cells)],
        cwd=ROOT,
        env=environment(path=os.defpath),
        capture_output=True,
        text=True,
        timeout=END_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    first, _, awaited, progress, misspelt, missing, stopped = json.loads(done.stdout)
    assert TABLE in first["text"]
    assert awaited == {"text": "True", "error": ""}
    assert progress["text"] == "2", progress
    assert "did you mean 'startingOffsets'?" in misspelt["error"]
    assert "topic no-such-topic does not exist" in missing["error"]
    assert stopped == {"text": "", "error": ""}
    for each in (misspelt, missing):
        assert "Traceback" not in each["error"], each
        assert 'File "' not in each["error"], each


def test_spark_connect_reads_and_writes_exactly_once(
    log: Log, words: str, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:  # S2
    topics = {kind: log.topic(fresh_name(kind)) for kind in ("table", "stream", "each")}
    folder = Path(sys.executable).parent
    set_ = environment("SPARK_HOME", path=f"{folder}{os.pathsep}{os.environ['PATH']}")
    set_["PYTHONPATH"] = f"{packages_of(CONNECT)}:{ROOT / 'src'}"
    for _ in range(2):  # the second finds every batch written
        done = subprocess.run(
            [sys.executable, CLIENT, log.servers, words, *topics.values(), tmp_path],
            env=set_,
            capture_output=True,
            text=True,
            timeout=END_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        for topic in topics.values():
            assert log.values(topic) == ["ada", "grace"], topic
