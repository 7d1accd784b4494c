"""Data sources that do as little as a Python data source can: the ceilings of ours."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

KEY_BYTES = 16
VALUE_BYTES = 100
BATCH_ROWS = 10_000
TASKS = 2
TWO = "key binary, value binary"
SEVEN = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int"
)


class Generator(DataSource):
    """``rows`` rows, made beforehand, in two or seven ``columns``."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "bench-generator"

    def schema(self) -> str:
        """The columns."""
        return TWO if self.options.get("columns", "2") == "2" else SEVEN

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read."""
        return GeneratorReader(len(schema.fields), int(self.options["rows"]) // TASKS)


class GeneratorReader(DataSourceReader):
    """Yields the same Arrow batch again and again."""

    def __init__(self, columns: int, rows: int) -> None:
        """Rows are those of one task."""
        self._columns = columns
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        """One for each task."""
        return [InputPartition(number) for number in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield whole batches."""
        batch = rows(self._columns)
        for _ in range(self._rows // BATCH_ROWS):
            yield batch


def rows(columns: int) -> pa.RecordBatch:
    """Return rows as a source of the Kafka kind has them."""
    arrays = {
        "key": pa.array([b"%016d" % number for number in range(BATCH_ROWS)], pa.binary()),
        "value": pa.array([b"%0100d" % number for number in range(BATCH_ROWS)], pa.binary()),
        "topic": pa.array(["bench"] * BATCH_ROWS, pa.string()),
        "partition": pa.array([0] * BATCH_ROWS, pa.int32()),
        "offset": pa.array(range(BATCH_ROWS), pa.int64()),
        "timestamp": pa.array([0] * BATCH_ROWS, pa.timestamp("us", "UTC")),
        "timestampType": pa.array([0] * BATCH_ROWS, pa.int32()),
    }
    names = list(arrays)[:columns]
    return pa.RecordBatch.from_arrays([arrays[name] for name in names], names=names)


class Discard(DataSource):
    """A sink that counts."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "bench-discard"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """A batch write."""
        return DiscardWriter()


class DiscardWriter(DataSourceArrowWriter):
    """Takes Arrow batches and lets them go."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Read the task's rows to their end."""
        for _ in iterator:
            pass
        return WriterCommitMessage()
