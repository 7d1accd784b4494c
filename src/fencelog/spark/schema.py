"""The columns of reads and writes, as in Spark's Kafka connector.

Spark checks a yielded Arrow batch for exact equality with its own schema: ``binary`` and never
``large_binary``, timestamps in microseconds UTC. A write takes whatever Spark sends and casts it.
"""

from typing import TYPE_CHECKING, Final

from fencelog.errors import FencelogError

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import DataType, StructType

HEADERS: Final = "headers"
COLUMN_TYPES: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    HEADERS: "array<struct<key:string,value:binary>>",
}
COLUMNS: Final = tuple(name for name in COLUMN_TYPES if name != HEADERS)
"""The columns of a read without ``includeHeaders``, in the connector's order."""

# Rows of a read (``SELECT *``) can be written; these two belong to the record that was read.
IGNORED_IN_WRITES: Final = frozenset({"offset", "timestamptype"})


class SchemaError(FencelogError, ValueError):
    """A write has a column that cannot be written, or lacks a required one."""


def read_schema(columns: tuple[str, ...]) -> str:
    """Spark's DDL of a read with these columns."""
    return ", ".join(f"{name} {COLUMN_TYPES[name]}" for name in columns)


def conform(batch: "pyarrow.RecordBatch", schema: "pyarrow.Schema") -> "pyarrow.RecordBatch":
    """The batch with exactly this schema: columns are selected by name, and cast if necessary."""
    import pyarrow

    arrays = []
    for field in schema:
        array = batch.column(field.name)
        arrays.append(array if array.type.equals(field.type) else array.cast(field.type))
    return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


def check_write(schema: "StructType", *, topic_option: bool) -> tuple[tuple[str, str], ...]:
    """Return (column of the rows, what it is written as) in order; raises SchemaError.

    ``value`` is required; ``topic`` must be a column or an option. A column with another name is
    refused, so that no column is dropped without notice.
    """
    roles: dict[str, str] = {}
    for field in schema.fields:
        role = field.name.lower()
        if role in IGNORED_IN_WRITES or (role == "topic" and topic_option):
            continue
        if role not in _WRITABLE:
            raise SchemaError(
                f"column '{field.name}' cannot be written to fencelog: select only key, value,"
                " topic, partition, headers and timestamp (to_json(struct(...)) makes one value"
                " of many columns)"
            )
        if role in roles.values():
            raise SchemaError(f"column '{field.name}' is selected twice: select it once")
        _check_type(field.name, field.dataType, _WRITABLE[role])
        roles[field.name] = role
    if "value" not in roles.values():
        raise SchemaError("column 'value' (string or binary) is missing: add it to the select")
    if not topic_option and "topic" not in roles.values():
        raise SchemaError("the topic is missing: set option 'topic', or add a column 'topic'")
    return tuple(roles.items())


def check_read(schema: "StructType") -> None:
    """Raise SchemaError if a read cannot return the schema that the user gave."""
    for field in schema.fields:
        spelled = field.dataType.simpleString()
        if COLUMN_TYPES.get(field.name) != spelled:
            raise SchemaError(
                f"a fencelog read has no column '{field.name}' of type {spelled}; its columns are"
                f" {', '.join(COLUMN_TYPES)}: give no schema, and select with option 'columns'"
            )


def to_write(
    batch: "pyarrow.RecordBatch", roles: tuple[tuple[str, str], ...]
) -> "pyarrow.RecordBatch":
    """The rows with the columns and types of the client's writer."""
    import pyarrow

    types = {
        "key": pyarrow.binary(),
        "value": pyarrow.binary(),
        "topic": pyarrow.string(),
        "partition": pyarrow.int32(),
        "timestamp": pyarrow.timestamp("us", tz="UTC"),
        HEADERS: pyarrow.list_(
            pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])
        ),
    }
    arrays = []
    for column, role in roles:
        array = batch.column(column)
        arrays.append(array if array.type.equals(types[role]) else array.cast(types[role]))
    return pyarrow.RecordBatch.from_arrays(arrays, names=[role for _, role in roles])


def _check_type(column: str, actual: "DataType", allowed: tuple[str, ...]) -> None:
    spelled = actual.simpleString().lower()
    if spelled not in allowed:
        raise SchemaError(f"column '{column}' is {spelled}: cast it to {' or '.join(allowed[:2])}")


_WRITABLE: Final = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    HEADERS: ("array<struct<key:string,value:binary>>",),
}
