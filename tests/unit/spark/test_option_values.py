"""Each option: the value that it becomes, and the spelling that its errors have."""

import pytest

from fencelog.spark.options import OptionError, check_read, columns, sink_options, source_options

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
READ = {**SERVERS, "subscribe": "flights"}


@pytest.mark.parametrize(
    ("option", "text", "field", "value"),
    [
        ("isolation", "tail", "isolation", "tail"),
        ("minPartitions", "3", "partitions_min", 3),
        ("maxRecordsPerPartition", "4", "partition_offsets_max", 4),
        ("maxOffsetsPerTrigger", "5", "offsets_per_trigger_max", 5),
        ("minOffsetsPerTrigger", "6", "offsets_per_trigger_min", 6),
        ("maxTriggerDelay", "7s", "trigger_delay_max_ms", 7000),
        ("failOnDataLoss", "False", "fail_on_data_loss", False),
        ("groupId", "g", "group_id", "g"),
        ("kafka.group.id", " g ", "group_id", "g"),
        ("columns", "value,Key", "columns", ("value", "key")),
    ],
)
def test_an_option_of_a_read_is_a_field(option: str, text: str, field: str, value: object) -> None:
    plain = source_options(READ, {}, streaming=False)
    given = source_options({**READ, option.lower(): text}, {}, streaming=False)
    assert getattr(given, field) == value
    assert getattr(plain, field) != value


@pytest.mark.parametrize(
    ("option", "text", "field", "value"),
    [
        ("topic", "flights", "topic", "flights"),
        ("app", "billing", "app", "billing"),
        ("takeover", "true", "takeover", True),
        ("stagingLocation", "s3://a/b", "staging_location", "s3://a/b"),
        ("delivery", "At-least-once", "exactly_once", False),
        ("kafka.transaction.timeout.ms", "9000", "transaction_timeout_ms", 9000),
        ("checkpointLocation", "/c", "checkpoint_location", "/c"),
        *(
            ("kafka.compression.type", codec, "compression", codec)
            for codec in ("gzip", "snappy", "lz4", "zstd")
        ),
    ],
)
def test_an_option_of_a_write_is_a_field(option: str, text: str, field: str, value: object) -> None:
    plain = sink_options(SERVERS, {}, streaming=True)
    given = sink_options({**SERVERS, option.lower(): text}, {}, streaming=True)
    assert getattr(given, field) == value
    assert getattr(plain, field) != value


def test_records_are_not_compressed_by_default() -> None:
    assert sink_options(SERVERS, {}, streaming=True).compression == "none"
    named = {**SERVERS, "kafka.compression.type": "none"}
    assert sink_options(named, {}, streaming=True).compression == "none"


def test_a_client_says_that_it_is_fencelog_s_in_spark_unless_it_is_named() -> None:
    assert source_options(READ, {}, streaming=True).connection.client_id == "fencelog-spark"
    named = {**READ, "kafka.client.id": "billing", "kafka.request.timeout.ms": "1500"}
    connection = source_options(named, {}, streaming=True).connection
    assert (connection.client_id, connection.request_timeout_ms) == ("billing", 1500)


OF_READS = (
    "kafka.client.id",
    "kafka.request.timeout.ms",
    "kafka.security.protocol",
    "kafka.isolation.level",
    "isolation",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "failOnDataLoss",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "columns",
    "groupId",
    "kafka.group.id",
)
OF_WRITES = (
    "topic",
    "app",
    "takeover",
    "stagingLocation",
    "delivery",
    "kafka.acks",
    "kafka.compression.type",
    "kafka.enable.idempotence",
    "kafka.transaction.timeout.ms",
    "asyncProgressTrackingEnabled",
    "checkpointLocation",
)


@pytest.mark.parametrize("option", OF_READS)
def test_an_empty_option_of_a_read_is_named_as_the_guide_spells_it(option: str) -> None:
    with pytest.raises(OptionError, match=f"^option '{option}' is empty: give it a value or remo"):
        source_options({**READ, option.lower(): " "}, {}, streaming=False)


@pytest.mark.parametrize("option", OF_WRITES)
def test_an_empty_option_of_a_write_is_named_as_the_guide_spells_it(option: str) -> None:
    with pytest.raises(OptionError, match=f"^option '{option}' is empty: give it a value or remo"):
        sink_options({**SERVERS, option.lower(): ""}, {}, streaming=True)


@pytest.mark.parametrize("option", ["subscribe", "subscribePattern", "assign"])
def test_an_empty_subscription_is_named_too(option: str) -> None:
    with pytest.raises(OptionError, match=f"^option '{option}' is empty"):
        source_options({**SERVERS, option.lower(): ""}, {}, streaming=True)


@pytest.mark.parametrize(
    ("side", "streaming", "job"),
    [
        ("source", True, "stream source"),
        ("source", False, "batch read"),
        ("sink", True, "stream sink"),
        ("sink", False, "batch write"),
    ],
)
def test_an_unknown_option_is_refused_for_what_it_was_given_to(
    side: str, streaming: bool, job: str
) -> None:
    parse, given = (source_options, READ) if side == "source" else (sink_options, SERVERS)
    with pytest.raises(OptionError) as refused:
        parse({**given, "zzz": "1"}, {}, streaming=streaming)
    assert str(refused.value) == f"option 'zzz' is unknown for a fencelog {job}: remove it"


def test_an_unknown_option_is_refused_when_columns_are_asked_for() -> None:
    with pytest.raises(OptionError, match=r"^option 'zzz' is unknown for a fencelog read: remov"):
        check_read({**READ, "zzz": "1"}, {})


def test_headers_are_added_to_chosen_columns_once() -> None:
    asked = {"includeHeaders": "TRUE"}
    assert columns({**asked, "columns": "value"}) == ("value", "headers")
    assert columns({**asked, "columns": "headers,value"}) == ("headers", "value")


def test_what_is_read_until_is_a_time_an_offset_or_the_end() -> None:
    def ending(**options: str) -> object:
        return source_options({**READ, **options}, {}, streaming=False).ending

    assert ending(endingOffsets="LATEST") == ending()
    for options in ({"endingTimestamp": "5"}, {"endingOffsetsByTimestamp": '{"flights":{"0":5}}'}):
        # Both ends of a batch are read while more is written: a later end is where the log ends.
        assert getattr(ending(**options), "beyond_the_end") == "latest"  # noqa: B009
    with pytest.raises(OptionError, match=r"'endingOffsets' is '.*': -2 \(earliest\) cannot be an"):
        ending(endingOffsets='{"flights": {"0": -2}}')
