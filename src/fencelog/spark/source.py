"""The data source that Spark looks up under ``format("fencelog")``."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from fencelog.errors import FencelogError
from fencelog.spark.options import (
    BOOTSTRAP_VARIABLE,
    check_read,
    columns,
    sink_options,
    source_options,
)
from fencelog.spark.plain_errors import plain_errors
from fencelog.spark.schema import read_schema
from fencelog.spark.worker_heap import freeze_imports

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@plain_errors
class FencelogDataSource(DataSource):
    """Streams and tables over a fencelog broker; option names as in Spark's Kafka connector."""

    own_options: ClassVar[tuple[str, ...]] = ()
    """Options that a subclass reads itself; any other unknown option is an error."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Store the options and the driver's default servers: executors have other environments."""
        self.options = options
        self._environment = {
            name: os.environ[name] for name in (BOOTSTRAP_VARIABLE,) if name in os.environ
        }

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "fencelog"

    def schema(self) -> str:
        """The columns that the options select. Spark asks only for reads, at ``load``."""
        check_read(self._options(), self._environment)
        return read_schema(columns(self.options))

    # Spark passes these parameters by keyword: their names are part of its interface.

    def reader(self, schema: "StructType") -> DataSourceReader:
        """A batch read."""
        from fencelog.spark.batch import BatchReader

        return BatchReader(
            source_options(self._options(), self._environment, streaming=False), schema
        )

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:  # noqa: N802
        """A streaming read."""
        from fencelog.spark.pyspark_api import ADMISSION_CONTROL
        from fencelog.spark.refused_reader import RefusedStreamReader
        from fencelog.spark.stream_reader import StreamReader
        from fencelog.spark.unlimited_reader import UnlimitedStreamReader

        reader = StreamReader if ADMISSION_CONTROL else UnlimitedStreamReader
        try:
            options = source_options(self._options(), self._environment, streaming=True)
            return reader(options, schema)
        except FencelogError as error:
            return RefusedStreamReader(error)

    def writer(self, schema: "StructType", overwrite: bool) -> DataSourceWriter:
        """A batch write."""
        from fencelog.spark.batch import BatchWriter

        options = sink_options(self._options(), self._environment, streaming=False)
        return BatchWriter(options, schema, overwrite=overwrite)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """A streaming write; Complete mode (``overwrite``) appends as well."""
        from fencelog.spark.stream_writer import StreamWriter

        del overwrite
        writer = StreamWriter(
            sink_options(self._options(), self._environment, streaming=True), schema
        )
        # Spark asks a worker for a writer once or twice in each micro-batch.
        freeze_imports()
        return writer

    def _options(self) -> dict[str, str]:
        own = {name.lower() for name in self.own_options}
        return {name: text for name, text in self.options.items() if name.lower() not in own}
