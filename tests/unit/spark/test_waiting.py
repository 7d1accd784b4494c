"""What the runner's screen says a query waits for."""

from dataclasses import replace

import pyarrow as pa
import pytest

from fencelog.client.blocking import Client
from fencelog.client.model import Joined, OpenBatch
from fencelog.spark.lookout import holders
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
