"""The queries that a driver may run, by name: those with state, and three without event time.

Their input is that of ``stateful``. ``copy`` and ``each_batch`` write each record's number, the
latter in two writes a batch; ``complete`` writes all totals again in each batch, so what it writes
depends on where the batches end.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tests.support.spark import stateful
from tests.support.spark.stateful import KEYS, Query, parsed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COPY, EACH_BATCH, COMPLETE = "copy", "each_batch", "complete"
PARTS: Final = ("even", "odd")
"""The writes of each batch of ``each_batch``, by the remainder of a record's number."""


def copied(rows: "DataFrame") -> "DataFrame":
    """The number of each record."""
    return parsed(rows).selectExpr("string(n) AS value")


def totals(rows: "DataFrame") -> "DataFrame":
    """How many records each key has so far."""
    counted = parsed(rows).groupBy("key").count()
    return counted.selectExpr("concat_ws('/', key, count) AS value")


QUERIES: Final[dict[str, Query]] = {
    **stateful.QUERIES,
    COPY: copied,
    EACH_BATCH: copied,
    COMPLETE: totals,
}


def expected(name: str, batches: Sequence[Sequence[int]]) -> Counter[str]:
    """What a query writes, each value as often as it does, if its batches have these records."""
    if name == COMPLETE:
        written: Counter[str] = Counter()
        so_far: Counter[int] = Counter()
        for batch in batches:
            so_far.update(n % KEYS for n in batch)
            written.update(f"k{key}/{count}" for key, count in so_far.items())
        return written
    count = sum(len(batch) for batch in batches)
    if name in stateful.QUERIES:
        return Counter(stateful.expected(count)[name])
    return Counter(str(n) for batch in batches for n in batch)
