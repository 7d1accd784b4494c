"""What PySpark 4.0 to 4.3 do not have in common, found by looking for it. Nothing else asks.

- Admission control since 4.2: Spark hands the start and a read limit to ``latestOffset``, and
  tells a source of the trigger AvailableNow. Before, ``latestOffset`` has no arguments.
- Writers that take Arrow: for batches in all of them, for streams since 4.1.
- The time zone of an Arrow schema's timestamps has to be named since 4.2, and was UTC before.
"""

from importlib.util import find_spec
from inspect import signature
from typing import TYPE_CHECKING, Final

from pyspark.sql import datasource

ADMISSION_CONTROL: Final = find_spec("pyspark.sql.streaming.datasource") is not None
"""Whether a stream's batches can be limited."""

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

if TYPE_CHECKING or ADMISSION_CONTROL:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
else:

    class SupportsTriggerAvailableNow:
        """Spark does not look for it."""

    class ReadLimit:
        """Spark hands out none."""

    class ReadAllAvailable(ReadLimit):
        """No limit."""

    class ReadMaxRows(ReadLimit):
        """At most so many rows."""

    class ReadMinRows(ReadLimit):
        """At least so many rows."""


if TYPE_CHECKING or hasattr(datasource, "DataSourceStreamArrowWriter"):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:

    class DataSourceStreamArrowWriter(
        datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter
    ):
        """PySpark 4.0 looks for the second base before it makes rows, in streams as well."""


def arrow_schema(schema: "StructType") -> "pyarrow.Schema":
    """What Spark wants batches of this schema to be."""
    from pyspark.sql.pandas.types import to_arrow_schema

    named = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **named)


__all__ = [
    "ADMISSION_CONTROL",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
    "arrow_schema",
]
