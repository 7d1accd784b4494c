"""What the micro-batches of a stream take, phase by phase as Spark reports them."""

import time
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

FEW_ROWS = 20
WARM_BATCHES = 8
DEADLINE_S = 120.0
PHASES = (
    "triggerExecution",
    "latestOffset",
    "walCommit",
    "queryPlanning",
    "addBatch",
    "commitOffsets",
)
"""The names of ``durationMs`` in Spark's progress; the first is the sum of the others."""

Phases = dict[str, float]
"""Median milliseconds by phase."""


def batches(writer: "DataStreamWriter", checkpoint: str, count: int) -> Phases:
    """Run a stream for so many batches behind the first ones."""
    writer = writer.option("checkpointLocation", checkpoint)
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        deadline = time.monotonic() + DEADLINE_S
        while len(_durations(query)) < count + WARM_BATCHES:
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline, f"{len(_durations(query))} batches"
            time.sleep(0.2)
        taken = _durations(query)[WARM_BATCHES : WARM_BATCHES + count]
        return {phase: median(each.get(phase, 0) for each in taken) for phase in PHASES}
    finally:
        query.stop()


def _durations(query: "StreamingQuery") -> list[dict[str, int]]:
    return [dict(each.durationMs) for each in query.recentProgress if each.numInputRows]
