"""Reads one range of a partition in a task, for batch and stream reads."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from fencelog.client.model import DataLossError
from fencelog.spark.offsets import OffsetRange
from fencelog.spark.options import SourceOptions
from fencelog.spark.planning import connect, data_loss
from fencelog.spark.pyspark_api import arrow_schema
from fencelog.spark.schema import conform
from fencelog.spark.worker_heap import freeze_imports

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType


class RangePartition(InputPartition):
    """The work of one task: one range of one partition."""

    def __init__(self, offsets: OffsetRange) -> None:
        """Store the range; Spark pickles this to the task."""
        super().__init__(offsets)
        self.offsets = offsets


def read_range(
    partition: InputPartition, options: SourceOptions, schema: "StructType"
) -> Iterator["pyarrow.RecordBatch"]:
    """Yield the range's records with exactly this schema.

    Spark plans one partition without a range where there is nothing to read; it yields nothing.
    """
    if not isinstance(partition, RangePartition):
        return
    wanted_schema = arrow_schema(schema)
    columns = frozenset(schema.fieldNames())
    wanted = partition.offsets
    client = connect(options.connection)
    start = wanted.start
    while True:
        try:
            batches = client.fetch_arrow(
                wanted.partition,
                start,
                wanted.end,
                isolation=options.isolation,
                columns=columns,
                topic_id=wanted.topic_id,
            )
            for batch in batches:
                yield conform(batch, wanted_schema)
        except DataLossError as error:
            if options.fail_on_data_loss:
                raise data_loss([f"{wanted.partition}: {error}"]) from error
            # Retention deleted the beginning of the range: continue at the log start.
            earliest = client.offsets([wanted.partition], "earliest", "replicated")
            moved = earliest[wanted.partition]
            if moved <= start or moved >= wanted.end:
                return
            start = moved
        else:
            freeze_imports()
            return
