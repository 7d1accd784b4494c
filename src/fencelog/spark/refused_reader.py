"""A stream's error, told by the first call of its reader.

What ``streamReader`` itself raises is lost: in all releases up to 4.3 PySpark then stops a reader
that it does not have, and reports the UnboundLocalError of that.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Never

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from fencelog.errors import FencelogError
from fencelog.spark.plain_errors import plain_errors

if TYPE_CHECKING:
    import pyarrow


@plain_errors
class RefusedStreamReader(DataSourceStreamReader):
    """Every call raises the error."""

    def __init__(self, error: FencelogError) -> None:
        """Keep the error."""
        self._error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Spark's first call where the query is new."""
        self._refuse()

    def latestOffset(self, *_: object) -> dict[str, Any]:  # noqa: N802
        """Spark's first call before PySpark 4.2."""
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Spark's first call where the query continues."""
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator["pyarrow.RecordBatch"]:
        """Never comes to it."""
        self._refuse()

    def _refuse(self) -> Never:
        raise self._error
