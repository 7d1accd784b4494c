"""Each workload on a real broker: its history is valid, and its checker finds faults in it."""

import asyncio
import importlib.util
import json
import threading
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from fencelog.check import check
from fencelog.check.history import FINAL, Event
from fencelog.client.versioned_transactions import Transactions
from fencelog.errors import ErrorCode, FencelogError, RequestError
from fencelog.rpc.failures import failure
from fencelog.types import TopicPartition
from fencelog_sim.workload import Scale
from fencelog_sim.workloads import WORKLOADS, lingering, player
from fencelog_sim.workloads.aio import _stop
from fencelog_sim.workloads.attempts import WrongAnswerError
from fencelog_sim.workloads.lingering import linger
from fencelog_sim.workloads.own import OwnLibrary, open_cluster
from fencelog_sim.workloads.plans import Send, named
from fencelog_sim.workloads.settling import come_to_rest, end_transactions
from fencelog_sim.workloads.topics import ensure_topic
from tests.support.broker import BrokerProcess
from tests.unit.sim.real_stage import RealStage, play

pytestmark = pytest.mark.slow  # a broker process, and workloads played to their end

SCALE = Scale(clients=3, partitions=2, records_per_send=3, pause_s=0, key_records=30)
FENCED = ("PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")
# A member's sessions and silences take long; deleted records, topics and streams have their own
# checkers.
EVERY = sorted(WORKLOADS.keys() - {"admin", "copy", "keyed", "quiet", "readers", "streams"})


def final_polls(events: list[Event]) -> list[dict[str, list[list[Any]]]]:
    """What the final readers saw, poll by poll, to be tampered with."""
    return [
        step[1]
        for event in events
        if event["type"] == "ok" and event["process"].startswith(FINAL)
        for step in event["steps"]
        if step[1]
    ]


def copy_of(events: list[Event]) -> list[Event]:
    return json.loads(json.dumps(events))


@pytest.mark.parametrize("name", [each for each in EVERY if each != "owners"])
def test_what_a_workload_records_of_an_undisturbed_broker_is_valid(
    name: str, broker: BrokerProcess
) -> None:
    workload = WORKLOADS[name]()
    events = play(workload, broker.address, operations=20, scale=SCALE, lives=2)
    verdict = check(events)
    assert verdict.outcome == "valid", verdict.problems
    assert workload.check(events) == []
    outcomes = {event["type"] for event in events}
    assert outcomes >= {"ok", "failed", "reset", "end"}
    assert verdict.counts["sends acknowledged"] > 40
    assert len(final_polls(events)) > SCALE.partitions, "no key gave way to another"


def test_topics_that_are_deleted_and_made_again_show_nothing_of_the_last_ones(
    broker: BrokerProcess,
) -> None:
    workload = WORKLOADS["admin"]()
    events = play(workload, broker.address, operations=150, scale=SCALE)
    assert workload.check(events) == []
    whats = {str(event.get("what")) for event in events}
    assert whats >= {"deleted", "wrote", "committed", "configured", "left"}
    ghost = {"type": "meta", "time": 0.0, "what": "left", "topic": "admin-0"}
    ghost |= {"starts": 0, "committed": {}}
    events.append({**ghost, "rows": [["admin-0-0", 0, "of a deleted topic"]]})
    assert any(each.startswith("from nowhere") for each in workload.check(events))


def test_what_happens_by_itself_on_a_quiet_broker_happens_in_time(broker: BrokerProcess) -> None:
    scale = Scale(clients=1, partitions=1, session_s=6.0)
    events = play(WORKLOADS["quiet"](), broker.address, operations=2, scale=scale)
    assert check(events).outcome == "valid"
    polls = [poll for poll in final_polls(events) if isinstance(poll, dict)]
    seen = [value for poll in polls for rows in poll.values() for _, value in rows]
    assert [value for value in seen if ".silent." in value] == ["final.silent.1", "final.silent.2"]


@pytest.mark.parametrize("name", EVERY)
def test_a_workload_goes_on_over_kills_of_the_broker(name: str, broker: BrokerProcess) -> None:
    killings: list[threading.Thread] = []

    def kill_at(count: int) -> None:
        if count in (60, 140):
            killings.append(threading.Thread(target=broker.restart))
            killings[-1].start()

    workload = WORKLOADS[name]()
    events = play(workload, broker.address, operations=60, scale=SCALE, seed=2, on_event=kill_at)
    for killing in killings:
        killing.join()
    assert broker.exit_statuses == [-9, -9]
    verdict = check(events)
    assert verdict.outcome == "valid", verdict.problems
    assert workload.check(events) == []
    # Of the claimants only one at a time owns what it writes to.
    assert verdict.counts["sends acknowledged"] > (10 if name == "owners" else 60)


@pytest.fixture(scope="module")
def bank_history(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    with BrokerProcess(tmp_path_factory.mktemp("bank") / "data") as broker:
        return play(WORKLOADS["bank"](), broker.address, operations=10, scale=SCALE)


def test_the_bank_names_a_transfer_with_one_half(bank_history: list[Event]) -> None:
    tampered = copy_of(bank_history)
    rows = next(iter(final_polls(tampered)[0].values()))
    _, value = rows.pop(0)
    (problem,) = WORKLOADS["bank"]().check(tampered)
    assert problem.startswith(f"transfer {value.partition(':')[0]} is seen as ")


def test_the_bank_names_a_half_that_is_there_twice(bank_history: list[Event]) -> None:
    tampered = copy_of(bank_history)
    rows = next(iter(final_polls(tampered)[0].values()))
    rows.append([rows[-1][0] + 1000, rows[0][1]])
    (problem,) = WORKLOADS["bank"]().check(tampered)
    assert rows[0][1].partition(":")[0] in problem


@pytest.fixture(scope="module")
def versioned_history(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    with BrokerProcess(tmp_path_factory.mktemp("versioned") / "data") as broker:
        return play(WORKLOADS["versioned"](), broker.address, operations=20, scale=SCALE)


def test_a_version_that_two_tries_wrote_is_named(versioned_history: list[Event]) -> None:  # V1
    tampered = copy_of(versioned_history)
    rows = next(iter(final_polls(tampered)[0].values()))
    offset, value = rows[0]
    app_and_version, _, _ = value.partition("#")
    rows.insert(0, [offset - 1, f"{app_and_version}#another.1.2.3"])
    (problem,) = WORKLOADS["versioned"]().check(tampered)
    app, _, version = app_and_version.partition("@")
    assert problem.startswith(f"version {version} of {app} is visible from 2 tries: ")
    assert "another.1 at " in problem


def test_versions_out_of_order_are_named(versioned_history: list[Event]) -> None:  # V1, V3
    tampered = copy_of(versioned_history)
    key, rows = next(iter(final_polls(tampered)[0].items()))
    app, _, version = rows[0][1].partition("#")[0].partition("@")
    rows.insert(0, [rows[0][0] - 1, f"{app}@{int(version) + 1000}#w.1.2.3"])
    problems = WORKLOADS["versioned"]().check(tampered)
    assert any(
        problem.startswith(f"version {version} of {app} is at {key} ") for problem in problems
    )


def refusing_nothing(
    code: ErrorCode,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a request succeed where the broker refuses it with this code."""

    def wrap(request: Callable[..., Any]) -> Callable[..., Any]:
        async def lenient(*arguments: object, **options: object) -> object:
            try:
                return await request(*arguments, **options)
            except RequestError as error:
                if error.code is not code:
                    raise
                return None

        return lenient

    return wrap


@pytest.mark.parametrize(
    "code", [ErrorCode.VERSION_CONFLICT, ErrorCode.RUN_FENCED, ErrorCode.TRANSACTION_ABORTED]
)
def test_a_driver_fails_on_a_commit_that_had_to_be_refused(  # V1, V2, V3
    code: ErrorCode, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Transactions, "commit", refusing_nothing(code)(Transactions.commit))
    with pytest.raises(ExceptionGroup) as caught:
        play(WORKLOADS["versioned"](), broker.address, operations=400, scale=SCALE)
    # A driver that takes an aborted version for committed may first be told at its next join.
    assert caught.group_contains(WrongAnswerError, match=f"{code.name}|VERSION_GAP")


def test_settling_gives_up_on_a_transaction_that_stays_open(broker: BrokerProcess) -> None:
    partition = TopicPartition("t", 0)

    async def settle_beside_an_open_transaction() -> None:
        stage = RealStage(broker.address, Random(1), "final", SCALE, [], 0)
        cluster = open_cluster(stage)
        await ensure_topic(cluster, "t", 1)
        library = OwnLibrary(stage)
        writer = await library.writer("id")
        await writer.begin()
        await writer.send(partition, ["open"])
        await writer.flush()
        try:
            await come_to_rest(stage, cluster, [partition], within_s=0.5)
        finally:
            await end_transactions(stage, cluster, ["id"])
            await come_to_rest(stage, cluster, [partition])
            await writer.close()
            await library.close()
            await cluster.close()

    with pytest.raises(TimeoutError, match="transactions are open on t-0 at 0 of 1"):
        asyncio.run(settle_beside_an_open_transaction())


def test_a_deserted_transaction_is_left_to_its_timeout(  # E12
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lingering, "DESERT_SHARE", 1.0)
    partition = TopicPartition("t", 0)
    stage = RealStage(broker.address, Random(1), "final", SCALE, [], 0)

    async def desert() -> dict[TopicPartition, dict[str, int]]:
        cluster = open_cluster(stage)
        await ensure_topic(cluster, "t", 1)
        await linger(stage, cluster, "deserted", [Send(partition, ["a"]), Send(partition, ["b"])])
        ends = await come_to_rest(stage, cluster, [partition])
        await cluster.close()
        return ends

    ends = asyncio.run(desert())
    record_and_marker = 2
    assert ends[partition]["last_stable"] == record_and_marker
    failed = stage.events[-1]
    assert failed["type"] == "failed"
    assert failed["steps"] == [["send", "t/0", "a", None], ["send", "t/0", "b", None]]


def test_a_lingering_transaction_is_committed_whole_or_not_at_all(  # E12
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lingering, "DESERT_SHARE", 0.0)
    monkeypatch.setattr(lingering, "TIMEOUT_MS", (150, 300))
    monkeypatch.setattr(player, "LINGER_SHARE", 0.5)
    events = play(WORKLOADS["bank"](), broker.address, operations=15, scale=SCALE)
    verdict = check(events)
    assert verdict.outcome == "valid", verdict.problems
    assert WORKLOADS["bank"]().check(events) == []
    errors = [str(event.get("error", "")) for event in events]
    # A late write on a partition that is new to it learns it from the partition's leader.
    assert any(late in error for error in errors for late in FENCED), "no writer was too late"


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FencelogError, match="pip install aiokafka"):
        WORKLOADS["queue-aiokafka"]()


@pytest.mark.parametrize("name", ["queue", "bank"])
def test_a_sequence_gap_error_without_a_gap_is_reported(name: str) -> None:  # E5
    told = failure(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "produce to t-0")
    events: list[Event] = [
        {"type": "indeterminate", "process": "w1", "error": named(told), "steps": []},
        {"type": "failed", "process": "w2", "error": "TimeoutError", "steps": []},
    ]
    (problem,) = WORKLOADS[name]().check(events)
    assert problem.startswith("spurious-out-of-order: w1: ")


class Grudging:
    """A client of another make that cancels whoever stops it; its connections close."""

    closed = False

    async def stop(self) -> None:
        raise asyncio.CancelledError

    async def close(self) -> None:
        self.closed = True


def test_a_client_that_cancels_its_stopping_task_is_cut_off() -> None:
    client = Grudging()
    asyncio.run(_stop(client, client))
    assert client.closed


def test_a_cancellation_while_a_client_is_stopped_is_not_lost() -> None:
    class Slow(Grudging):
        async def stop(self) -> None:
            await asyncio.Event().wait()

    async def cancel_the_stop() -> None:
        stopping = asyncio.create_task(_stop(Slow(), Slow()))
        await asyncio.sleep(0)
        stopping.cancel()
        await stopping

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel_the_stop())
