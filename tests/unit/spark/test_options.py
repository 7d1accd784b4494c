"""Options: text in, frozen values or an error that names option, value and remedy."""

import re

import pytest

from fencelog.spark.options import (
    BOOTSTRAP_VARIABLE,
    OptionError,
    SinkOptions,
    SourceOptions,
    check_read,
    columns,
    sink_options,
    source_options,
)
from fencelog.types import TopicPartition

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}


def source(streaming: bool = True, **options: str) -> SourceOptions:
    given = {name.replace("__", "."): value for name, value in options.items()}
    if not {"subscribe", "assign", "subscribePattern"} & set(given):
        given["subscribe"] = "flights"
    return source_options(SERVERS | given, {}, streaming=streaming)


def sink(streaming: bool = True, **options: str) -> SinkOptions:
    given = {name.replace("__", "."): value for name, value in options.items()}
    return sink_options(SERVERS | given, {}, streaming=streaming)


def test_names_are_read_without_regard_to_case_as_spark_lowers_them() -> None:
    parsed = source(startingoffsets="earliest", maxoffsetspertrigger="500")
    assert parsed.starting.everywhere == "earliest"
    assert parsed.offsets_per_trigger_max == 500


def test_a_stream_starts_at_the_latest_and_a_batch_at_the_earliest_as_in_kafkas_connector() -> None:
    assert source().starting.everywhere == "latest"
    assert source(streaming=False).starting.everywhere == "earliest"
    assert source(streaming=False).ending.everywhere == "latest"


def test_isolation_is_transactional_by_default() -> None:  # F6
    assert source().isolation == "transactional"
    assert source(kafka__isolation__level="read_uncommitted").isolation == "replicated"
    assert source(isolation="replicated").isolation == "replicated"
    assert source(streaming=False, isolation="tail").isolation == "tail"


def test_offsets_by_partition_are_read_with_the_connectors_numbers_for_the_ends() -> None:
    parsed = source(startingOffsets='{"flights": {"0": 23, "1": -2, "2": -1}}')
    assert parsed.starting.named == (
        (TopicPartition("flights", 0), 23),
        (TopicPartition("flights", 1), "earliest"),
        (TopicPartition("flights", 2), "latest"),
    )


def test_a_start_that_moves_with_the_cluster_is_not_fixed() -> None:
    assert source(startingOffsets="earliest").starting.fixed
    assert source(startingOffsets='{"flights": {"0": 5}}').starting.fixed
    assert source(startingTimestamp="1000").starting.fixed
    assert not source().starting.fixed
    assert not source(startingOffsets='{"flights": {"0": -1}}').starting.fixed
    by_time = {"startingTimestamp": "1000", "startingOffsetsByTimestampStrategy": "latest"}
    assert not source(**by_time).starting.fixed


def test_assign_names_partitions_and_subscribe_names_topics() -> None:
    assert source(assign='{"a": [1, 0]}').subscription.partitions == (
        TopicPartition("a", 1),
        TopicPartition("a", 0),
    )
    assert source(subscribe="a, b,a").subscription.topics == ("a", "b")


def test_servers_come_from_the_environment_where_no_option_names_them() -> None:
    parsed = source_options({"subscribe": "a"}, {BOOTSTRAP_VARIABLE: "h:1"}, streaming=True)
    assert parsed.connection.bootstrap_servers == "h:1"
    named = source_options(
        {"subscribe": "a", "bootstrap.servers": "g:2 , i:3"},
        {BOOTSTRAP_VARIABLE: "h:1"},
        streaming=True,
    )
    assert named.connection.bootstrap_servers == "g:2,i:3"


def test_columns_are_the_connectors_and_headers_only_when_asked_for() -> None:
    seven = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    assert columns({}) == seven
    assert columns({"includeheaders": "true"}) == (*seven, "headers")
    assert columns({"columns": "value, OFFSET"}) == ("value", "offset")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"kafka.security.protocol": "SSL"}, "is 'SSL': PLAINTEXT only"),
        ({"kafka.ssl.truststore.location": "/t"}, "is refused: fencelog has neither TLS"),
        ({"kafka.acks": "all"}, "is unknown for a fencelog stream source: it is for the sink"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "above 'maxOffsetsPer"),
        ({"maxTriggerDelay": "5 weeks"}, "'maxTriggerDelay' is '5 weeks': write a time as"),
        ({"assign": '{"a": [0]}', "subscribe": "a"}, "found 'subscribe' and 'assign'"),
        ({"subscribePattern": "a("}, "not a regular expression"),
        ({"assign": '{"a": 0}'}, "needs a list of partitions"),
        ({"assign": "[1]"}, "expected a JSON object"),
        ({"startingOffsets": "soon"}, "option 'startingOffsets' is 'soon': not JSON"),
        ({"startingOffsets": '{"flights": {"0": -3}}'}, "expected a number of -2 or more"),
        ({"startingOffsets": '{"other": {"0": 1}}'}, "other-0, which is not subscribed to"),
        ({"startingTimestamp": "today"}, "write milliseconds since 1970"),
        ({"maxOffsetsPerTrigger": "0"}, "'maxOffsetsPerTrigger' is '0': write a whole number"),
        ({"failOnDataLoss": "no"}, "'failOnDataLoss' is 'no': write true or false"),
        ({"isolation": "committed"}, "write one of transactional, replicated, tail"),
        ({"columns": "key,valeu"}, "'valeu' is not a column"),
        ({"columns": "key,key"}, "name each column once"),
        ({"groupId": " "}, "'groupId' is empty"),
        ({"bootstrap.servers": "", "kafka.bootstrap.servers": "localhost"}, "is not HOST:PORT"),
    ],
)
def test_a_wrong_option_is_refused_with_its_name_and_what_to_write(
    options: dict[str, str], says: str
) -> None:
    with pytest.raises(OptionError, match=re.escape(says)):
        source(**options)


def test_tail_is_refused_in_streams_for_a_replay_must_see_the_same_input() -> None:  # S2
    with pytest.raises(OptionError, match="write transactional or replicated"):
        source(isolation="tail")


def test_an_end_is_refused_in_streams_and_a_start_at_the_end_in_batches() -> None:
    with pytest.raises(OptionError, match="'endingOffsets' is for batch reads only"):
        source(endingOffsets="latest")
    with pytest.raises(OptionError, match="a batch read from the end is empty"):
        source(streaming=False, startingOffsets="latest")
    with pytest.raises(OptionError, match="'endingOffsets' is 'earliest'"):
        source(streaming=False, endingOffsets="earliest")


def test_a_delay_is_written_with_spark_s_units() -> None:
    assert source().trigger_delay_max_ms == 15 * 60_000
    given = {"500": 500, "500ms": 500, "30s": 30_000, "2 min": 120_000, "1h": 3_600_000}
    assert {text: source(maxTriggerDelay=text).trigger_delay_max_ms for text in given} == given


def test_what_is_wrong_in_a_stream_only_is_left_to_the_stream_when_columns_are_asked_for() -> None:
    check_read(SERVERS | {"subscribe": "a", "endingoffsets": "latest"}, {})
    check_read(SERVERS | {"subscribe": "a", "startingoffsets": "latest"}, {})
    with pytest.raises(OptionError, match="exactly one of 'subscribe'"):
        check_read(SERVERS, {})
    with pytest.raises(OptionError, match="unknown for a fencelog read: did you mean 'subscribe'"):
        check_read(SERVERS | {"subscibe": "a"}, {})


def test_missing_servers_name_the_option_and_the_variable() -> None:
    with pytest.raises(OptionError, match=r"'kafka.bootstrap.servers' is missing.*FENCELOG_"):
        source_options({"subscribe": "a"}, {}, streaming=True)


def test_the_sink_is_exactly_once_by_default() -> None:  # S2
    assert sink().exactly_once
    assert not sink(delivery="at-least-once").exactly_once
    with pytest.raises(OptionError, match="write one of exactly-once, at-least-once"):
        sink(delivery="maybe")


def test_an_outage_may_last_as_long_as_kafka_s_options_say() -> None:
    assert sink().connection.api_timeout_ms == source().connection.api_timeout_ms == 60_000
    assert sink(**{"kafka.delivery.timeout.ms": "5"}).connection.api_timeout_ms == 5
    assert source(**{"kafka.default.api.timeout.ms": "5"}).connection.api_timeout_ms == 5
    assert source(**{"kafka.request.timeout.ms": "5"}).connection.request_timeout_ms == 5
    with pytest.raises(OptionError, match=r"'kafka.delivery.timeout.ms' is unknown"):
        source(**{"kafka.delivery.timeout.ms": "5"})
    with pytest.raises(OptionError, match=r"'kafka.transaction.timeout.ms' .* at most 2147483647"):
        sink(**{"kafka.transaction.timeout.ms": "2147483648"})


def test_asynchronous_progress_tracking_is_refused() -> None:
    assert sink(asyncProgressTrackingEnabled="false").exactly_once
    with pytest.raises(OptionError, match="breaks exactly-once"):
        sink(asyncProgressTrackingEnabled="true")


def test_options_added_by_spark_are_accepted() -> None:
    assert sink(queryname="q", checkpointlocation="/c", path="p").checkpoint_location == "/c"


def test_an_app_and_a_number_identify_a_batch_write() -> None:  # V3, V4
    assert sink(app="billing", takeover="true").takeover
    numbered = sink(streaming=False, app="billing", batch="0", takeover="true")
    assert (numbered.app, numbered.batch, numbered.takeover) == ("billing", 0, True)
    assert sink(streaming=False).batch is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"app": "billing"}, "options 'app' and 'batch' of a batch write go together"),
        ({"batch": "1"}, "options 'app' and 'batch' of a batch write go together"),
        ({"takeover": "true"}, "'takeover' needs the options 'app' and 'batch'"),
        ({"app": "billing", "batch": "-1"}, "'batch' is '-1': write a whole number from 0 on"),
        ({"app": "a", "batch": "1", "delivery": "at-least-once"}, "'batch' needs delivery"),
    ],
)
def test_half_an_identity_is_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=re.escape(says)):
        sink(streaming=False, **options)


def test_spark_numbers_the_batches_of_a_stream() -> None:
    with pytest.raises(OptionError, match="'batch' is for batch writes"):
        sink(app="billing", batch="1")
