"""Columns: exactly Spark's types out, and rows in that lose no column on the way."""

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from fencelog.spark.schema import SchemaError, check_read, check_write, conform, to_write


def schema(ddl: str) -> StructType:
    names = dict(part.strip().split(" ", 1) for part in ddl.split(";"))
    types = {
        "binary": "binary",
        "string": "string",
        "int": "integer",
        "bigint": "long",
        "timestamp": "timestamp",
        "headers": {
            "type": "array",
            "containsNull": True,
            "elementType": {
                "type": "struct",
                "fields": [
                    {"name": "key", "type": "string", "nullable": True, "metadata": {}},
                    {"name": "value", "type": "binary", "nullable": True, "metadata": {}},
                ],
            },
        },
    }
    fields = [
        {"name": name, "type": types[kind], "nullable": True, "metadata": {}}
        for name, kind in names.items()
    ]
    return StructType.fromJson({"type": "struct", "fields": fields})


ALL = schema(
    "key binary; value binary; topic string; partition int; offset bigint;"
    " timestamp timestamp; timestampType int; headers headers"
)


def test_a_batch_of_wider_types_becomes_exactly_what_spark_checks_for() -> None:
    wide = pa.RecordBatch.from_arrays(
        [
            pa.array([5], pa.int64()),
            pa.array([b"k"], pa.large_binary()),
            pa.array([1_000], pa.timestamp("ms", tz="UTC")),
        ],
        names=["offset", "key", "timestamp"],
    )
    wanted = to_arrow_schema(
        schema("key binary; offset bigint; timestamp timestamp"), timezone="UTC"
    )
    assert conform(wide, wanted).schema.equals(wanted)


def test_a_copy_of_a_read_is_a_valid_write() -> None:
    roles = check_write(ALL, topic_option=False)
    assert roles == tuple(
        (name, name) for name in ("key", "value", "topic", "partition", "timestamp", "headers")
    )


def test_the_topic_option_goes_before_the_column() -> None:
    assert check_write(schema("topic string; value string"), topic_option=True) == (
        ("value", "value"),
    )


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ("key binary", "column 'value' .* is missing"),
        ("value binary; carrier string", "column 'carrier' cannot be written"),
        ("value bigint", "column 'value' is bigint: cast it to binary or string"),
        ("value binary; partition bigint", "column 'partition' is bigint: cast it to int"),
        ("value binary; Value binary", "is selected twice"),
    ],
)
def test_rows_that_would_lose_something_are_refused(columns: str, says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        check_write(schema(columns), topic_option=True)


def test_a_write_without_a_topic_is_refused() -> None:
    with pytest.raises(SchemaError, match="set option 'topic', or add a column"):
        check_write(schema("value binary"), topic_option=False)


def test_text_is_written_as_its_bytes() -> None:
    rows = pa.RecordBatch.from_arrays(
        [pa.array(["ä", None]), pa.array(["x", "y"], pa.large_string())], names=["Key", "value"]
    )
    written = to_write(rows, (("Key", "key"), ("value", "value")))
    assert written.schema.names == ["key", "value"]
    assert written.column("key").to_pylist() == ["ä".encode(), None]
    assert written.column("value").type == pa.binary()


def test_a_schema_that_a_read_cannot_return_is_refused() -> None:
    check_read(ALL)
    with pytest.raises(SchemaError, match="no column 'value' of type string"):
        check_read(schema("value string"))


def test_rows_are_cast_to_what_the_client_writes() -> None:
    header = pa.struct([("key", pa.large_string()), ("value", pa.large_binary())])
    given = {
        "key": pa.array([b"k"], pa.large_binary()),
        "value": pa.array(["v"], pa.large_string()),
        "topic": pa.array(["t"], pa.large_string()),
        "partition": pa.array([2], pa.int64()),
        "timestamp": pa.array([1_000], pa.timestamp("ms", tz="America/New_York")),
        "headers": pa.array([[{"key": "h", "value": b"x"}]], pa.list_(header)),
    }
    rows = pa.RecordBatch.from_pydict(given)
    written = to_write(rows, tuple((name, name) for name in given))
    narrow = pa.struct([("key", pa.string()), ("value", pa.binary())])
    assert {field.name: field.type for field in written.schema} == {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "headers": pa.list_(narrow),
    }
    assert written.column("headers").to_pylist() == [[{"key": "h", "value": b"x"}]]
    assert written.column("timestamp").cast(pa.int64()).to_pylist() == [1_000_000]
