"""Queries with state, by name; the rows are numbered, and so are those that come out.

The input's values are JSON: ``n`` counts the records, ``key`` is one of some, ``s`` is the second
of its event time. What comes out does not depend on where a batch ends, so any two runs that go to
the end agree: as sets, and where every row comes out once, as lists.
"""

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

Query: TypeAlias = "Callable[[DataFrame], DataFrame]"


def parsed(rows: "DataFrame") -> "DataFrame":
    """The input's columns, with the event time as ``at``."""
    read = rows.selectExpr("from_json(string(value), 'n LONG, key STRING, s LONG') AS it")
    return read.selectExpr("it.n", "it.key", "timestamp_seconds(it.s) AS at")


def windows(rows: "DataFrame") -> "DataFrame":
    """Counts of each ten seconds, written when the watermark has passed them."""
    from pyspark.sql import functions as f

    counted = parsed(rows).withWatermark("at", "10 seconds").groupBy(f.window("at", "10 seconds"))
    return counted.count().selectExpr("concat_ws('/', unix_seconds(window.start), count) AS value")


def joins(rows: "DataFrame") -> "DataFrame":
    """Each record with its own copy, which comes through the other side of a join."""
    left = parsed(rows).withWatermark("at", "10 seconds")
    right = left.selectExpr("n AS other", "at AS other_at")
    near = "n = other AND other_at BETWEEN at - INTERVAL 5 SECONDS AND at + INTERVAL 5 SECONDS"
    from pyspark.sql import functions as f

    return left.join(right, f.expr(near)).selectExpr("string(n) AS value")


def duplicates(rows: "DataFrame") -> "DataFrame":
    """The first record of each key."""
    return parsed(rows).dropDuplicates(["key"]).selectExpr("key AS value")


def _count(
    key: tuple[str], frames: "Iterator[pd.DataFrame]", state: Any
) -> "Iterator[pd.DataFrame]":
    """Number the records of a key; ``state`` is Spark's GroupState with the count so far."""
    import pandas as pd

    (count,) = state.get if state.exists else (0,)
    for frame in frames:
        numbers = range(count + 1, count + len(frame) + 1)
        yield pd.DataFrame({"key": [key[0]] * len(frame), "count": list(numbers)})
        count += len(frame)
    state.update((count,))


def with_state(rows: "DataFrame") -> "DataFrame":
    """Each key's records, numbered by ``applyInPandasWithState``."""
    from pyspark.sql.streaming.state import GroupStateTimeout

    numbered = (
        parsed(rows)
        .groupBy("key")
        .applyInPandasWithState(
            _count, "key STRING, count LONG", "count LONG", "append", GroupStateTimeout.NoTimeout
        )
    )
    return numbered.selectExpr("concat_ws('/', key, count) AS value")


def transformed(rows: "DataFrame") -> "DataFrame":
    """Each key's records, numbered by ``transformWithStateInPandas``."""
    import pandas as pd
    from pyspark.sql.streaming import StatefulProcessor

    class Numbers(StatefulProcessor):
        """Keeps the count of each key."""

        def init(self, handle: Any) -> None:
            self._count = handle.getValueState("count", "count LONG")

        def handleInputRows(  # noqa: N802
            self,
            key: Any,
            rows: "Iterator[pd.DataFrame]",
            timerValues: Any,  # noqa: N803
        ) -> "Iterator[pd.DataFrame]":
            del timerValues
            (count,) = self._count.get() if self._count.exists() else (0,)
            for frame in rows:
                numbers = range(count + 1, count + len(frame) + 1)
                yield pd.DataFrame({"key": [key[0]] * len(frame), "count": list(numbers)})
                count += len(frame)
            self._count.update((count,))

        def close(self) -> None:
            """Nothing to close."""

    numbered = (
        parsed(rows)
        .groupBy("key")
        .transformWithStateInPandas(
            statefulProcessor=Numbers(),
            outputStructType="key STRING, count LONG",
            outputMode="append",
            timeMode="none",
        )
    )
    return numbered.selectExpr("concat_ws('/', key, count) AS value")


QUERIES: Final[dict[str, Query]] = {
    "windows": windows,
    "joins": joins,
    "dropDuplicates": duplicates,
    "applyInPandasWithState": with_state,
    "transformWithStateInPandas": transformed,
}

STATE_SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}
KEYS, PER_SECOND, WINDOW_S, LATE_S = 10, 10, 10, 10
BEGIN_S = 1_700_000_000
"""Not 0: the first watermark is 0, and what is not above it is late."""


def numbered_value(n: int) -> str:
    """One record of the input."""
    return json.dumps({"n": n, "key": f"k{n % KEYS}", "s": BEGIN_S + n // PER_SECOND})


def numbered_values(count: int) -> list[str]:
    """The input: records of some keys, some in each second of their event time."""
    return [numbered_value(n) for n in range(count)]


def expected(count: int) -> dict[str, list[str]]:
    """What each query writes for that input, in any order."""
    watermark_s = (count - 1) // PER_SECOND - LATE_S
    per_window = WINDOW_S * PER_SECOND
    numbered = [f"k{n % KEYS}/{n // KEYS + 1}" for n in range(count)]
    return {
        "windows": [
            f"{BEGIN_S + start}/{per_window}"
            for start in range(0, count // PER_SECOND, WINDOW_S)
            if start + WINDOW_S <= watermark_s
        ],
        "joins": [str(n) for n in range(count)],
        "dropDuplicates": [f"k{n}" for n in range(KEYS)],
        "applyInPandasWithState": numbered,
        "transformWithStateInPandas": numbered,
    }
