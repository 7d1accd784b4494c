"""The four use cases of ownership as `examples/ownership` has them, each with a zombie (O11).

A process is stopped for longer than its lease, another one takes over, and the first one goes on
from where it stood: nothing that it does then is stored anywhere.
"""

import json
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from fencelog.client.blocking import Client
from fencelog.types import TopicPartition
from tests.clients.install import NotInstalled, packages_of
from tests.clients.ownership_stage import (
    DEADLINE_S,
    FOLDER,
    STORES,
    Program,
    object_store,
    postgresql,
)
from tests.support.broker import BrokerProcess
from tests.support.waiting import wait_until

LEASE = ("--lease-s", "3")
ROOT = FOLDER.parent.parent
GUIDE = (ROOT / "docs/guide/ownership-examples.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The guide's blocks of this language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    return [block for each, block in found if each == language]


def printed(script: str) -> list[str]:
    """The command of the guide that runs this example."""
    (line,) = (
        line for block in blocks("") for line in block.splitlines() if f"python {script}" in line
    )
    return shlex.split(line)


class Stage:
    """A topic of one partition, and programs that own it."""

    def __init__(self, address: str, client: Client, topic: str, environment: dict[str, str]):
        """Create the topic."""
        self.address, self.client, self.topic = address, client, topic
        self.environment = environment
        self.partition = TopicPartition(topic, 0)
        self.resource = f"{topic}/0"
        client.create_topic(topic)

    def start(self, script: str, *more: str, **instead: str) -> Program:
        """Start an example as the guide prints it, on this broker and topic."""
        values = {"python": sys.executable, "localhost:9092": self.address, **instead}
        command = [values.get(word, word) for word in printed(script)]
        assert re.fullmatch(r"\w+/0", command[-1])
        return Program(*command[:-1], *more, self.resource, environment=self.environment)

    def stored(self) -> list[tuple[str, str]]:
        """Key and value of all that is committed."""
        (end,) = self.client.offsets([self.partition], "latest").values()
        records = self.client.fetch(self.partition, 0, end)
        return [((each.key or b"").decode(), (each.value or b"").decode()) for each in records]


@pytest.fixture
def stage(clients_broker: BrokerProcess, fresh_name: Callable[[str], str]) -> Iterator[Stage]:
    with Client(clients_broker.address) as client:
        yield Stage(clients_broker.address, client, fresh_name("owned"), {})


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What lets a program write to an object store: a bucket is made by whoever uses it."""
    try:
        with object_store(tmp_path_factory.mktemp("s3") / "log") as where:
            yield {**where, "PYTHONPATH": f"{packages_of(STORES)}:{ROOT / 'src'}"}
    except NotInstalled as missing:
        pytest.skip(str(missing))


# --- (a) a partitioned store with the log as its commit log


def test_a_store_has_all_that_was_stored_and_nothing_of_its_zombies(stage: Stage) -> None:
    command = ("store.py", *LEASE)
    with stage.start(*command) as first, stage.start(*command) as second:
        masters = wait_until(
            lambda: [each for each in (first, second) if each.lines], deadline_s=DEADLINE_S
        )
        killed, writes = (first, second) if first in masters else (second, first)
        assert killed.asked("put a 1") == "stored a"
        killed.kill()
        writes.says("serving .*, 1 keys")
        assert writes.asked("get a") == "1"
        assert writes.asked("put b 2") == "stored b"
        with stage.start(*command) as reads:
            writes.freeze()
            reads.says("serving .*, 2 keys")
            writes.tell("put a zombie")
            writes.wake()
            assert writes.ended() == 1
            assert reads.asked("put a 3") == "stored a"
            with stage.start(*command) as last:
                reads.freeze()
                last.says("serving .*, 2 keys")
                assert last.asked("put a 4") == "stored a"
                reads.tell("get a")
                reads.wake()
                assert reads.ended() == 1, "an old value is no answer"
                last.signal(signal.SIGTERM)
                assert last.ended() == 0
        for zombie in (writes, reads):
            assert "OWNER_FENCED" in zombie.text, zombie.text
            assert "Traceback" not in zombie.text
    assert stage.stored() == [("a", "1"), ("b", "2"), ("a", "3"), ("a", "4")]


def test_a_zombie_replaces_no_snapshot(stage: Stage, s3: dict[str, str]) -> None:
    stage.environment = s3
    bucket = f"{s3['AWS_ENDPOINT_URL']}/snapshots"
    known = {"Authorization": "AWS4-HMAC-SHA256 Credential=a/0/us-east-1/s3/aws4_request"}
    urlopen(Request(bucket, method="PUT", headers=known)).close()
    command = ("store.py", *LEASE, "--bucket", "snapshots")
    with stage.start(*command) as first:
        first.says("serving")
        first.asked("put a 1")
        assert first.asked("snapshot") == "snapshot up to 2"
        with stage.start(*command) as second:
            first.freeze()
            second.says("serving .*, 1 keys")
            second.asked("put b 2")
            second.asked("snapshot")
            first.tell("snapshot")
            first.wake()
            assert first.ended() == 1
            assert "the snapshot has token" in first.text, first.text
    with urlopen(Request(f"{bucket}/{stage.resource}", headers=known)) as found:
        assert json.load(found)["entries"] == {"a": "1", "b": "2"}


# --- (b) highly available readers of a database table


class Sqlite:
    """The outbox in a file."""

    def __init__(self, folder: Path) -> None:
        self.url = str(folder / "outbox.db")
        self._connection = sqlite3.connect(self.url, isolation_level=None)

    def insert(self, first: int, last: int) -> None:
        rows = [(row, f"row {row}") for row in range(first, last + 1)]
        self._connection.executemany("INSERT INTO outbox VALUES (?, ?)", rows)

    def published(self) -> int:
        """The row up to which everything is marked as published."""
        return int(self._connection.execute("SELECT id FROM published").fetchone()[0])

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Others can read meanwhile, and wait if they want to write."""
        self._connection.execute("BEGIN IMMEDIATE")
        yield
        self._connection.execute("ROLLBACK")

    def close(self) -> None:
        self._connection.close()


class Postgresql:
    """The outbox in a server; ``psql`` is what comes with it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def _run(self, statement: str) -> str:
        command = ["psql", self.url, "--quiet", "--tuples-only", "--command", statement]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout.strip()

    def insert(self, first: int, last: int) -> None:
        self._run(
            f"INSERT INTO outbox SELECT n, 'row ' || n FROM generate_series({first}, {last}) n"
        )

    def published(self) -> int:
        return int(self._run("SELECT id FROM published"))

    @contextmanager
    def locked(self) -> Iterator[None]:
        with Program("psql", self.url, "--quiet") as lock:
            lock.tell("BEGIN; LOCK TABLE published IN EXCLUSIVE MODE; SELECT 'locked';")
            lock.says("locked")
            yield


def publish_with_a_zombie(stage: Stage, database: Sqlite | Postgresql) -> str:
    """Returns what the zombie said."""

    def start() -> Program:
        return stage.start("publisher.py", *LEASE, **{"outbox.db": database.url})

    with start() as first:
        first.says("publishing after row 0")
        database.insert(1, 5)
        first.says("published up to row 5")
        wait_until(lambda: database.published() == 5, what="the mark")
        with start() as second:
            first.freeze()
            database.insert(6, 7)
            with database.locked():
                first.wake()
                first.says("published up to row 7")
                first.freeze()  # on its way to the database
                assert not second.lines
            second.says("publishing after row 7")
            database.insert(8, 9)
            second.says("published up to row 9")
            first.wake()
            assert first.ended() == 1
            wait_until(lambda: database.published() == 9, what="the mark")
            second.signal(signal.SIGINT)
            assert (second.ended(), second.errors) == (0, [])
    assert stage.stored() == [(str(row), f"row {row}") for row in range(1, 10)]
    return first.text


def test_rows_of_sqlite_are_published_in_order_through_a_zombie(
    stage: Stage, tmp_path: Path
) -> None:
    database = Sqlite(tmp_path)
    try:
        said = publish_with_a_zombie(stage, database)
    finally:
        database.close()
    assert "'outbox' has a newer owner than token" in said, "the database compares the token"


def test_rows_of_postgresql_are_published_in_order_through_a_zombie(stage: Stage) -> None:
    try:
        stage.environment = {"PYTHONPATH": f"{packages_of(STORES)}:{ROOT / 'src'}"}
        with postgresql() as url:
            publish_with_a_zombie(stage, Postgresql(url))
    except NotInstalled as missing:
        pytest.skip(str(missing))


# --- (c) readers that never share a partition


def test_a_reader_that_was_taken_over_commits_nothing(stage: Stage) -> None:
    count, group = 1000, f"readers-of-{stage.topic}"
    with stage.client.producer() as producer:
        for number in range(count):
            producer.send(stage.topic, str(number).encode(), partition=0)
    command = ("reader.py", *LEASE)
    with stage.start(*command, etl=group) as first, stage.start(*command, etl=group) as second:
        (zombie,) = wait_until(
            lambda: [each for each in (first, second) if len(each.lines) > 20],
            deadline_s=DEADLINE_S,
        )
        zombie.freeze()
        seen = len(zombie.lines)
        reader = second if zombie is first else first
        assert seen < count
        reader.says(f" {count - 1}$")
        wait_until(lambda: committed(stage, group) == count, what="the last commit")
        zombie.wake()
        assert zombie.ended() == 1
        assert "OWNER_FENCED" in zombie.text, zombie.text
        assert committed(stage, group) == count
    values = [int(line.split()[1]) for each in (zombie, reader) for line in each.lines]
    assert set(values) == set(range(count))
    # What it had printed and not yet committed, and the one record that it was about to print.
    assert len(values) <= count + 2


def committed(stage: Stage, group: str) -> int:
    return stage.client.committed_offsets(group)[stage.partition]


# --- (d) a task's journal


def test_a_task_goes_on_exactly_after_its_journal_and_an_older_attempt_adds_nothing(
    stage: Stage,
) -> None:
    steps = 20

    def attempt(number: int) -> Program:
        options = ("--steps", str(steps), "--work-s", "0.05")
        return stage.start("task.py", *options, **{"1": str(number)})

    with attempt(1) as zombie:
        zombie.says("^step 5:")
        zombie.freeze()
        with attempt(2) as newer:
            done = int(newer.says("attempt 2: .* steps are done").split()[2])
            assert 5 <= done < steps
            assert newer.ended() == 0, newer.text
            assert newer.lines[1].startswith(f"step {done + 1}:")
        zombie.wake()
        assert zombie.ended() == 1
        assert "OWNER_FENCED" in zombie.text, zombie.text
    with attempt(1) as late:
        assert late.ended() == 1
        assert "STALE_GENERATION" in late.text, late.text
    assert stage.stored() == [(str(step), str(step * step)) for step in range(1, steps + 1)]


# --- the guide


@pytest.mark.parametrize("language", ["python", "sql"])
def test_what_the_guide_shows_is_in_the_examples(language: str) -> None:
    def flat(text: str) -> str:
        return "\n".join(line.strip() for line in text.strip().splitlines())

    examples = [flat(file.read_text(encoding="utf-8")) for file in sorted(FOLDER.glob("*.py"))]
    shown = blocks(language)
    assert shown
    for block in shown:
        assert any(flat(block) in example for example in examples), block
