"""kafka-dump-log reads what brokers left on disk, deeply, and has nothing to complain about."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencelog.client.blocking import Client
from fencelog.log.layout import parse_file_name
from tests.jvm._directory import PARTITIONS, TOPICS, fill, partition, start_of
from tests.jvm._dump import DEEP, Dump, Printed, dump, fields, records
from tests.support.broker import BrokerProcess
from tests.support.jvm.host import ToolHost

INDEXES = (".index", ".timeindex")
EMPTY = ("untouched-0", "untouched-1", "transactions-1", "trimmed-1")
READ = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, tools: ToolHost) -> Path:
    """A data directory of brokers that were killed and stopped; nothing runs on it."""
    return fill(tmp_path_factory.mktemp("dump"))


@pytest.fixture(scope="module")
def printed(directory: Path, tools: ToolHost) -> Dump:
    """What the tool prints of each file of a topic of ours."""
    topics = [f"{topic}-{number}" for topic in TOPICS for number in range(PARTITIONS)]
    return dump(tools, files_of(directory, topics, READ), *DEEP)


def files_of(directory: Path, folders: list[str], suffixes: tuple[str, ...]) -> list[Path]:
    return [
        file
        for folder in folders
        for file in sorted((directory / folder).iterdir())
        if file.suffix in suffixes
    ]


def internal(directory: Path, topic: str) -> list[str]:
    return [path.name for path in sorted(directory.glob(f"{topic}-*"))]


def test_every_batch_of_every_topic_is_valid(printed: Dump) -> None:  # D3
    assert {path.suffix for path in printed.files} == set(READ)
    for path, text in printed.files.items():
        if path.suffix == ".log":
            assert text.count("isvalid: true") == text.count("baseOffset: "), path
            assert ("isvalid: true" in text) == (path.stat().st_size > 0), path


def test_offsets_follow_each_other_wherever_nothing_was_compacted(printed: Dump) -> None:  # D3
    for path in printed.files:
        if path.suffix == ".log" and "compact" not in policy_of(path):
            # The tool expects offset 0 first, also of a segment that begins later.
            base, _ = parse_file_name(path.name) or (0, "")
            assert list(printed.gaps.get(path, [])) == ([(-1, base)] if base else []), path


def policy_of(path: Path) -> str:
    topic, _, _ = path.parent.name.rpartition("-")
    return TOPICS[topic].get("cleanup.policy", "delete")


@pytest.fixture(scope="module")
def client(directory: Path, printed: Dump) -> Iterator[Client]:
    """A client of a broker on that directory, which starts when the tool is done with it."""
    with BrokerProcess(directory) as broker, Client(broker.address) as client:
        yield client


@pytest.mark.parametrize("topic", TOPICS)
def test_it_prints_the_records_that_a_client_reads(
    printed: Dump, client: Client, topic: str
) -> None:
    for number in range(PARTITIONS):
        where = partition(topic, number)
        start = start_of(client, topic, number)
        (end,) = client.offsets([where], "latest", isolation="replicated").values()
        read = [
            (record.offset, record.timestamp_ms, record.key, record.value)
            for record in client.fetch(where, start, end, isolation="replicated")
        ]
        shown = [
            (one.offset, one.timestamp_ms, one.key, one.value)
            for path, text in printed.files.items()
            if path.parent.name == str(where) and path.suffix == ".log"
            for one in records(text)
            if one.offset >= start
        ]
        assert shown == read
        assert bool(read) == (str(where) not in EMPTY)


def test_indexes_pass_its_sanity_check_and_its_verification(
    directory: Path, tools: ToolHost
) -> None:
    folders = [path.name for path in directory.iterdir() if path.is_dir()]
    files = files_of(directory, folders, INDEXES)
    for option in ("--index-sanity-check", "--verify-index-only"):
        for path, text in dump(tools, files, option).files.items():
            if option == "--index-sanity-check":
                assert "passed sanity check" in text or "is empty" in text, path


def decoded(text: str) -> list[Printed]:
    """The records, but those of owners (O8): of these the tool says that it passes them."""
    owners = re.compile(rb"Unknown record type 10000 at offset \d+, skipping\.")
    found = list(records(text))
    rest = [record for record in found if not owners.fullmatch(record.key or b"")]
    assert 0 < len(rest) < len(found)
    return rest


def test_it_decodes_every_record_of_the_groups(directory: Path, tools: ToolHost) -> None:  # E9
    files = files_of(directory, internal(directory, "__consumer_offsets"), READ)
    text = "".join(dump(tools, files, *DEEP, "--offsets-decoder").files.values())
    for record in decoded(text):
        assert record.key is not None
        assert record.key.startswith(b'{"type":"'), record
        assert record.value is None or record.value.startswith(b'{"version":"'), record
    assert '"group":"progress","topic":"plain","partition":0' in text
    assert '"protocolType":"consumer","generation":' in text
    assert '"subscription":' in text


def test_it_decodes_every_record_of_the_transactions(
    directory: Path, tools: ToolHost
) -> None:  # E9
    files = files_of(directory, internal(directory, "__transaction_state"), READ)
    text = "".join(dump(tools, files, *DEEP, "--transaction-log-decoder").files.values())
    found = decoded(text)
    assert {record.key for record in found} >= {
        b'{"type":"0","data":{"transactionalId":"writer-%d"}}' % number for number in range(2)
    }
    for record in found:
        assert record.value is not None
        assert record.value.startswith(b'{"version":"'), record


def test_snapshots_and_aborted_transactions_are_what_it_expects(
    printed: Dump,
) -> None:
    for path, text in printed.files.items():
        lines = [fields(line) for line in text.splitlines()]
        if path.suffix == ".snapshot":
            assert all(int(each["producerId"]) >= 0 for each in lines)
            assert len(lines) == text.count("currentTxnFirstOffset: "), path
        if path.suffix == ".txnindex":
            assert len(lines) * 34 == path.stat().st_size, path
            for each in lines:
                first, last = int(each["firstOffset"]), int(each["lastOffset"])
                assert first <= last, path
