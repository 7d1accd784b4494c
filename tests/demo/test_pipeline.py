"""The pipeline's frames on a table of flights, without a stream."""

import json
from typing import TYPE_CHECKING

import pytest

from fencelog_demo import audit, data
from fencelog_demo.producer import rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]

EVERY = 500


@pytest.fixture(scope="module")
def flights(spark: "SparkSession") -> "DataFrame":
    """The flights as the producer sends them, read as the pipeline reads them."""
    from fencelog_demo.pipeline import flights_of

    sent = [(bytearray(key), bytearray(value)) for key, value in rows(EVERY)]
    return flights_of(spark.createDataFrame(sent, "key BINARY, value BINARY"))


def test_events_and_totals_pass_the_audit(spark: "SparkSession", flights: "DataFrame") -> None:
    from fencelog_demo.pipeline import delays, monthly

    names = spark.createDataFrame(data.airlines())
    events, totals = (
        [audit.Record(0, bytes(row.key), bytes(row.value)) for row in frame.collect()]
        for frame in (delays(flights, names), monthly(flights))
    )
    source = audit.read_source(audit.data_folder(), EVERY)
    findings = audit.audit(source, events, totals)
    assert findings.passed, findings
    assert findings.totals_checked > 100


def test_the_event_of_a_cancelled_flight_has_null_delays(
    spark: "SparkSession", flights: "DataFrame"
) -> None:
    from fencelog_demo.pipeline import delays

    names = spark.createDataFrame(data.airlines())
    events = [json.loads(row.value) for row in delays(flights, names).collect()]
    cancelled = [event for event in events if event["cancelled"]]
    assert cancelled
    assert {(each["dep_delay"], each["arr_delay"]) for each in cancelled} == {(None, None)}
