"""What the runner's screen says a query waits for."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from fencelog.client.blocking import Client
from fencelog.client.model import Joined, OpenBatch
from fencelog.spark.lookout import Lookout, holders
from fencelog.spark.options import BOOTSTRAP_VARIABLE
from fencelog.spark.waiting import Situation, waits_for
from fencelog.testing import LocalBroker
from fencelog.types import TopicPartition

BUSY = Situation(message="Processing new data")
BATCH = OpenBatch(
    app="a",
    state="Ongoing",
    version=3,
    query_id="q",
    run_id="r",
    run_host=None,
    since_ms=0,
    producer_ids=(7,),
    rows=1_200,
)


@pytest.mark.parametrize(
    ("situation", "says"),
    [
        (Situation(message="Initializing sources"), "planning"),
        (Situation(message="Getting offsets from StreamReader"), "planning"),
        (BUSY, "planning or commit"),
        (replace(BUSY, tasks=(2, 4)), "tasks, 2 of 4 done"),
        (replace(BUSY, tasks=(2, 4), batch=BATCH), "tasks, 2 of 4 done, 1,200 rows written"),
        (replace(BUSY, batch=BATCH), "commit, 1,200 rows written"),
        (replace(BUSY, batch=replace(BATCH, rows=0)), "commit"),
        (replace(BUSY, batch=replace(BATCH, state="PrepareCommit", rows=-1)), "markers"),
        (replace(BUSY, batch=replace(BATCH, state="PrepareAbort")), "markers of an abort"),
        (Situation(message="Waiting for data to arrive"), "new records"),
        (Situation(message="Waiting for next trigger", holders={}), "new records"),
        (
            Situation(message="Waiting for data to arrive", holders={"t-0": "app etl"}),
            "open transaction of app etl on t-0",
        ),
        (
            Situation(message="Waiting for data", holders={"t-0": "orders", "t-1": "orders"}),
            "open transaction of orders on t-0 and 1 more",
        ),
    ],
)
def test_it_says_what_the_query_waits_for(situation: Situation, says: str) -> None:
    assert waits_for(situation) == says


def test_who_holds_back_a_partition_is_named_by_app_or_transactional_id(
    local: LocalBroker, client: Client
) -> None:
    local.create_topic("t", partitions=3)
    places = [TopicPartition("t", number) for number in range(3)]
    assert holders(client, []) == {}
    assert holders(client, places) == {}
    joined = client.join_transaction("etl", "q", "r", 0)
    assert isinstance(joined, Joined)
    batch = pa.RecordBatch.from_pydict({"value": [b"a"], "partition": pa.array([1], pa.int32())})
    with client.versioned_writer(joined, topic="t") as writer:
        writer.write(batch)
    with client.producer(transactional_id="orders") as producer:
        producer.begin()
        producer.send("t", b"a", partition=0)
        producer.flush()
        assert holders(client, places) == {"t-0": "orders", "t-1": "app etl"}


class Tracker:
    """Spark's status tracker: one job of the run is active, with a stage of four tasks."""

    def getActiveJobsIds(self) -> list[int]:  # noqa: N802  (Spark's names)
        return [1, 2]

    def getJobIdsForGroup(self, group: str) -> list[int]:  # noqa: N802
        return [0, 2] if group == "r" else []

    def getJobInfo(self, job: int) -> SimpleNamespace:  # noqa: N802
        assert job == 2
        return SimpleNamespace(stageIds=[5, 6])

    def getStageInfo(self, stage: int) -> SimpleNamespace | None:  # noqa: N802
        return SimpleNamespace(numCompletedTasks=3, numTasks=4) if stage == 5 else None


def query(message: str, app: str, run: str = "r", *, active: bool = True) -> Any:
    end = {"sources": [{"endOffset": {"held": {"0": 0}}}]}
    return SimpleNamespace(
        id=app,
        runId=run,
        isActive=active,
        status={"message": message},
        lastProgress=SimpleNamespace(json=json.dumps(end)),
    )


def test_the_lookout_asks_spark_and_the_broker(
    local: LocalBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.create_topic("held")
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=Tracker))
    monkeypatch.delenv(BOOTSTRAP_VARIABLE, raising=False)
    busy = query("Processing new data", "app-seen")
    assert Lookout(spark).waits_for(busy) == "tasks, 3 of 4 done"
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, local.bootstrap)
    assert Lookout(spark).waits_for(query("Processing new data", "app-seen", "other")) == (
        "planning or commit"
    )
    joined = client.join_transaction("app-seen", "app-seen", "r", 0)
    assert isinstance(joined, Joined)
    with client.versioned_writer(joined, topic="held") as writer:
        writer.write(pa.RecordBatch.from_pydict({"value": [b"a", b"b"]}))
        writer.flush()
    lookout = Lookout(spark)
    assert lookout.waits_for(busy) == "tasks, 3 of 4 done, 2 rows written"
    assert lookout.waits_for(query("Waiting for data to arrive", "app-seen", "new")) == (
        "open transaction of app app-seen on held-0"
    )
    # An answer counts for a while, so that a screen that is drawn often asks rarely.
    assert lookout.waits_for(query("Initializing", "app-seen")).startswith("tasks")
    assert lookout.waits_for(query("Stopped", "app-seen", "ended", active=False)) == ""


def test_without_an_answer_of_the_broker_the_screen_has_spark_s_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=Tracker))
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, "127.0.0.1:1")
    monkeypatch.setattr("fencelog.spark.lookout.ASK_S", 0.1)
    assert Lookout(spark).waits_for(query("Waiting for data to arrive", "a")) == "new records"
