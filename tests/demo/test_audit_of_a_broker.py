"""The audit as a program, against a real broker, with faults that a stock client wrote."""

import json
import subprocess
import sys

import pytest
from confluent_kafka import Producer

from fencelog_demo import audit
from tests.support.broker import BrokerProcess

pytestmark = pytest.mark.conformance

EVERY = 2_000


def write(address: str, *, lost: int = 0, duplicated: int = 0, aborted: int = 0) -> None:
    """Play the pipeline with these faults, in one transaction after an aborted one."""
    source = audit.read_source(audit.data_folder(), EVERY)
    names = ("year", "month", "day", "carrier", "flight", "origin", "sched_dep_time")
    more = ("airline", "dest", "dep_delay", "arr_delay", "cancelled")
    rows = [dict(zip(names + more, (*key, *facts), strict=True)) for key, facts in source.items()]
    marked = [{**row, "outcome": "abort"} for row in rows]
    committed = [{**row, "outcome": "commit"} for row in rows]
    producer = Producer({"bootstrap.servers": address, "transactional.id": "broken"})
    producer.init_transactions(30)
    for events, commit in (
        (marked, False),
        (committed[lost:] + committed[len(committed) - duplicated :] + marked[:aborted], True),
    ):
        producer.begin_transaction()
        for event in events:
            producer.produce("delays", key=event["carrier"], value=json.dumps(event))
        if commit:
            for name, row in audit.totals_of(source).items():
                producer.produce("delays-monthly", key=name, value=json.dumps(row))
        producer.flush(30)
        (producer.commit_transaction if commit else producer.abort_transaction)(30)


def run_audit(address: str) -> tuple[int, str]:
    """Exit status and last line of the audit."""
    command = [sys.executable, "-m", "fencelog_demo.audit", "--bootstrap-server", address]
    done = subprocess.run(
        [*command, "--every", str(EVERY)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, (done.stdout.splitlines() or [done.stderr])[-1]


def test_only_committed_rows_are_seen_and_the_audit_passes(broker: BrokerProcess) -> None:
    write(broker.address)
    assert run_audit(broker.address) == (0, "audit: 169 in, 169 out, 0 lost, 0 duplicated")


def test_faults_fail_the_audit(broker: BrokerProcess) -> None:
    write(broker.address, lost=3, duplicated=2)
    assert run_audit(broker.address) == (1, "audit: 169 in, 168 out, 3 lost, 2 duplicated")


def test_an_aborted_row_fails_the_audit(broker: BrokerProcess) -> None:
    write(broker.address, aborted=1)
    status, line = run_audit(broker.address)
    assert (status, line) == (
        1,
        "audit: 169 in, 170 out, 0 lost, 1 duplicated, 1 from aborted transactions",
    )
