"""``fencelog run --own``: who runs, who stands by, and how a driver that was replaced ends."""

from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace

import pytest

from fencelog.cli import run
from fencelog.client.blocking import Client
from fencelog.coordination.ownership.resources import partition_of
from fencelog.errors import ErrorCode, OwnershipLostError, RequestError
from fencelog.spark import lookout, pipeline
from fencelog.spark.driver_claim import DriverClaim, resource_of
from fencelog.spark.options import BOOTSTRAP_VARIABLE
from fencelog.spark.pipeline import RunSettings, start
from fencelog.spark.restarts import Restarts
from fencelog.testing.broker import LocalBroker
from tests.support.waiting import wait_until


class Said(list[str]):
    """What a driver tells; a test waits for a part of it."""

    def wait_for(self, text: str) -> str:
        return wait_until(
            lambda: next((line for line in self if text in line), ""), what=f"{text} in {self}"
        )


def driver(
    local: LocalBroker, name: str, said: Said, lost: list[OwnershipLostError]
) -> DriverClaim:
    return DriverClaim(local.bootstrap, name, said.append, lost.append)


def test_a_second_driver_stands_by_until_the_first_one_has_ended(local: LocalBroker) -> None:  # O10
    said, lost = Said(), list[OwnershipLostError]()
    with driver(local, "q", said, lost) as second:
        waits = Thread(target=second.acquire, daemon=True)
        with driver(local, "q", Said(), lost) as first, Client(local.bootstrap) as client:
            first.acquire()
            (held,) = client.describe_ownership([resource_of("q")])
            waits.start()
            assert said.wait_for("standing by") == (f"standing by: {held.holder} runs pipeline 'q'")
            assert waits.is_alive()
        waits.join(10)
        assert said[-1] == f"owns pipeline 'q', epoch {held.epoch + 1}"
        second.settle()
    assert lost == []


def test_a_pipeline_named_as_a_partition_is_none() -> None:
    assert partition_of(resource_of("orders/7")) is None


class Query:
    """A started query that runs until it is stopped."""

    id = runId = "of-a-test"  # noqa: N815  (Spark's names)
    recentProgress = ()  # noqa: N815
    lastProgress = None  # noqa: N815
    isActive = True  # noqa: N815

    def __init__(self) -> None:
        self.status = {"isTriggerActive": True, "message": "Processing new data"}

    def exception(self) -> None:
        return None

    def stop(self) -> None:
        self.isActive = False


class Session:
    """A session that knows whether it was stopped."""

    sparkContext = SimpleNamespace(uiWebUrl=None)  # noqa: N815

    def __init__(self, **_: object) -> None:
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, "restored after a run that sets it")
    monkeypatch.setattr(pipeline, "build_session", Session)
    monkeypatch.setattr(lookout, "Lookout", lambda _: SimpleNamespace(waits_for=lambda _: ""))


@pytest.mark.usefixtures("_without_spark")
def test_a_driver_that_lost_its_pipeline_stops_its_queries_at_once(
    local: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:  # O10
    query, phases = Query(), run._Phases()
    settings = RunSettings(file=Path("r.py"), bootstrap_servers=local.bootstrap, own="r")
    failures: list[object] = []

    def work() -> None:
        failures.append(run._work(lambda _: {"r": query}, settings, Restarts(enabled=True), phases))

    working = Thread(target=work, daemon=True)
    working.start()
    with Client(local.bootstrap) as client:
        assert phases.started.wait(10)
        assert not phases.stop.is_set()
        with client.own(resource_of("r")):
            working.join(10)
    assert failures == [{}]
    assert not query.isActive
    assert not phases.may_leave
    with pytest.raises(SystemExit) as left:
        run._leave_lost("r", str(phases.loss[0]), {"r": "FencedError: a newer run"})
    assert left.value.code == 75
    *_, query_s, error, hint = capsys.readouterr().err.splitlines()
    assert query_s == "query 'r' failed: FencedError: a newer run"
    assert error.startswith("error: pipeline 'r' is no longer owned: ")
    assert hint.startswith("hint: nothing is lost: its next owner goes on from the checkpoint")


@pytest.mark.usefixtures("_without_spark")
def test_the_pipeline_is_owned_before_its_function_is_called() -> None:
    calls: list[str] = []

    def function(_: object) -> dict[str, Query]:
        calls.append("function")
        return {"q": Query()}

    settings = RunSettings(file=Path("q.py"), own="q")
    start(function, settings, Event(), Event(), calls.append, lambda: calls.append("acquire"))
    assert calls[:2] == ["acquire", "function"]


@pytest.mark.usefixtures("_without_spark")
def test_a_claim_that_is_refused_ends_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Session()
    monkeypatch.setattr(pipeline, "build_session", lambda **_: made)

    def acquire() -> None:
        raise RequestError(ErrorCode.UNSUPPORTED_VERSION, "the broker is not fencelog")

    settings = RunSettings(file=Path("q.py"), own="q")
    with pytest.raises(RequestError):
        start(lambda _: {}, settings, Event(), Event(), [].append, acquire)
    assert made.stopped
