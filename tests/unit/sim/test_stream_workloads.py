"""Streams and their readers on a real broker: nothing is lost, doubled or out of order."""

import json
from typing import Any

import pytest

from fencelog_sim.workload import Scale
from fencelog_sim.workloads import WORKLOADS
from tests.support.broker import BrokerProcess
from tests.unit.sim.real_stage import play

pytestmark = pytest.mark.slow  # a broker process, and workloads played to their end

SCALE = Scale(clients=2, partitions=2, records_per_send=3, pause_s=0.01)
DEADLINE_S = 120.0


def played(name: str, broker: BrokerProcess, operations: int) -> list[Any]:
    """The history of an undisturbed run, in which segments were replaced."""
    workload = WORKLOADS[name]()
    events: list[Any] = play(
        workload, broker.address, operations=operations, scale=SCALE, deadline_s=DEADLINE_S
    )
    assert workload.check(events) == []
    assert any(each.get("predecessors") for each in events)
    return events


def test_streams_on_an_undisturbed_broker_keep_each_key_in_order(  # R1, R2
    broker: BrokerProcess,
) -> None:
    events = played("streams", broker, 150)
    outcomes = {each["outcome"] for each in events if each.get("what") == "wrote"}
    assert outcomes == {"ok", "failed"}
    tampered = json.loads(json.dumps(events))
    rows = [each["rows"] for each in tampered if each.get("what") == "segment" and each["rows"]]
    rows[0].append([*rows[0][-1]])
    rows[0][-1][0] += 1
    assert any(each.startswith("twice:") for each in WORKLOADS["streams"]().check(tampered))


def test_readers_of_an_undisturbed_broker_copy_each_event_once(broker: BrokerProcess) -> None:  # R6
    events = played("readers", broker, 40)
    assert sum(len(each["rows"]) for each in events if each.get("what") == "copy") > 0
