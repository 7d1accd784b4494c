"""The examples of the guide to reader groups run as they are printed."""

import re

import pytest

import fencelog
from fencelog.testing import LocalBroker
from tests.support.faults import ROOT

GUIDE = ROOT / "docs/guide/reader-groups.md"


@pytest.mark.slow
def test_the_examples_run_as_they_are_printed(
    fencelog_broker: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(
        r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    first, copy, seats = (
        each.replace("localhost:9092", fencelog_broker.bootstrap) for each in blocks
    )
    with fencelog.connect(fencelog_broker.bootstrap) as log:
        log.create_stream("orders", 1)
        log.create_topic("invoices")
        log.create_topic("seats")
        with log.producer() as producer:
            for value in (b"1", b"2", b"last"):
                producer.send("orders", value, key=b"ada")
    exec(first, {})
    assert capsys.readouterr().out.splitlines()[-1] == "0 b'ada' b'last'"
    exec(copy, {"END": {0: 3}})
    found = [each.value for each in fencelog_broker.records("invoices")]
    assert found == [b"1", b"2", b"last"]
    exec(seats, {})
    exec(seats, {})
    assert capsys.readouterr().out.splitlines()[-1] == str({"1A": "ada", "1B": "ada"})
