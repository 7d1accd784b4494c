"""What a user reads when something is wrong: one paragraph, at the first call Spark lets fail."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

from tests.spark.conftest import Log


def one_paragraph(error: PySparkException) -> str:
    text = str(error)
    assert "Traceback" not in text, text
    assert "File " not in text, text
    return text


@pytest.mark.parametrize("kind", ["read", "readStream"])
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"subscribe": "a", "startingOffset": "earliest"}, "did you mean 'startingOffsets'?"),
        ({"subscribe": "a", "kafka.sasl.mechanism": "PLAIN"}, "neither TLS nor authentication"),
        ({}, "exactly one of 'subscribe', 'subscribePattern' and 'assign' is required"),
    ],
)
def test_a_wrong_option_of_a_read_fails_at_load(
    spark: SparkSession, log: Log, kind: str, options: dict[str, str], says: str
) -> None:
    reader = getattr(spark, kind).format("fencelog").options(**options)
    with pytest.raises(PySparkException) as failed:
        reader.option("kafka.bootstrap.servers", log.servers).load()
    assert says in one_paragraph(failed.value)


def test_a_wrong_option_of_a_batch_write_fails_at_save(spark: SparkSession, log: Log) -> None:
    writer = spark.range(1).selectExpr("CAST(id AS STRING) value").write.format("fencelog")
    with pytest.raises(PySparkException, match="did you mean 'topic'") as failed:
        writer.option("kafka.bootstrap.servers", log.servers).option("topik", "a").mode(
            "append"
        ).save()
    one_paragraph(failed.value)


def test_what_spark_finds_out_in_the_query_is_one_paragraph_too(
    log: Log, read, read_stream, write_stream, fresh_name, tmp_path: Path
) -> None:
    with pytest.raises(PySparkException, match="topic no-such-topic does not exist") as failed:
        read("no-such-topic").collect()
    one_paragraph(failed.value)
    with pytest.raises(StreamingQueryException, match="topic no-such-topic does not") as ended:
        write_stream(read_stream("no-such-topic"), "anywhere")
    one_paragraph(ended.value)
    topic = log.topic(fresh_name("source"))
    log.produce(topic, ["a"])
    with pytest.raises(StreamingQueryException, match="did you mean 'delivery'") as refused:
        write_stream(
            read_stream(topic), "anywhere", checkpoint=tmp_path / "second", delivry="at-least-once"
        )
    one_paragraph(refused.value)
