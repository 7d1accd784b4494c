"""kafka-dump-log reads the files of a sealed segment, its snapshots included (R2)."""

from pathlib import Path

import pytest

from fencelog.client.blocking import Client
from fencelog.log.snapshot import decode_snapshot
from tests.jvm._dump import DEEP, Dump, dump, fields, records
from tests.support.broker import BrokerProcess
from tests.support.jvm.host import ToolHost
from tests.support.ownership import BlockingClaimant
from tests.support.sealed_logs import write_sealed_log

SEALED = "stream-0"
READ = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, tools: ToolHost) -> Path:
    """Files that a kill and a clean stop have left; the markers behind the seal are the last."""
    place = tmp_path_factory.mktemp("sealed") / "data"
    with BrokerProcess(place) as broker:
        with Client(broker.address) as client:
            write_sealed_log(client, broker.address, "stream", segment_bytes="4096")
        with BlockingClaimant(broker.address, group="others") as claimant:
            for _ in range(40):  # more than one file of what may follow a seal
                claimant.own("stream/0")
                claimant.release()
        broker.restart()
        assert broker.terminate() == 0
    return broker.data_dir


@pytest.fixture(scope="module")
def printed(directory: Path, tools: ToolHost) -> Dump:
    """What the tool prints of each file of the sealed segment."""
    folder = sorted((directory / SEALED).iterdir())
    return dump(tools, [each for each in folder if each.suffix in READ], *DEEP)


def test_a_sealed_log_is_valid_and_its_records_are_those_before_the_seal(  # R2
    printed: Dump,
) -> None:
    logs = {path: text for path, text in printed.files.items() if path.suffix == ".log"}
    assert len(logs) > 1, "the seal begins a file"
    for path, text in logs.items():
        assert text.count("isvalid: true") == text.count("baseOffset: ") > 0, path
    values = [one.value or b"" for text in logs.values() for one in records(text)]
    before = [each for each in values if each.endswith(b" before")]
    assert len(before) == 80
    first, *others = logs.values()
    assert not any(one.value in before for text in others for one in records(text))
    for kind in ("COMMIT", "ABORT"):
        assert f"endTxnMarker: {kind}" not in first
        assert f"endTxnMarker: {kind}" in others[0]


def test_the_snapshots_of_a_sealed_log_are_read_to_the_end_of_its_producers(  # R2
    printed: Dump,
) -> None:
    found = {path: text for path, text in printed.files.items() if path.suffix == ".snapshot"}
    assert any(decode_snapshot(path.read_bytes()).sealed_at is not None for path in found), (
        "one is from after the seal"
    )
    for text in found.values():
        lines = [fields(line) for line in text.splitlines()]
        assert all(int(each["producerId"]) >= 0 for each in lines)
        assert len(lines) == text.count("currentTxnFirstOffset: ")
