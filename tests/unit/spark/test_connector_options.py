"""The table of the connector's options is what the source and the sink do with them."""

from collections.abc import Callable

import pytest

from fencelog.spark.connector_options import CONNECTOR_OPTIONS, ConnectorOption, note
from fencelog.spark.options import OptionError, sink_options, source_options

REQUIRED = {"source": {"subscribe": "t"}, "sink": {"topic": "t"}}
SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
VALUES = {
    "kafka.bootstrap.servers": "h:1",
    "subscribePattern": "t.*",
    "assign": '{"t": [0]}',
    "startingOffsets": "earliest",
    "startingTimestamp": "1000",
    "startingOffsetsByTimestamp": '{"t": {"0": 1000}}',
    "startingOffsetsByTimestampStrategy": "latest",
    "endingOffsets": "latest",
    "endingTimestamp": "1000",
    "endingOffsetsByTimestamp": '{"t": {"0": 1000}}',
    "failOnDataLoss": "false",
    "includeHeaders": "true",
    "maxTriggerDelay": "10s",
    "kafka.isolation.level": "read_uncommitted",
    "kafka.compression.type": "zstd",
    "kafka.acks": "all",
    "kafka.enable.idempotence": "true",
    "kafka.transaction.timeout.ms": "60000",
    "kafka.security.protocol": "PLAINTEXT",
    "asyncProgressTrackingEnabled": "false",
}
ONE_VALUE = {
    "kafka.acks": "1",
    "kafka.enable.idempotence": "false",
    "kafka.security.protocol": "SASL_SSL",
    "asyncProgressTrackingEnabled": "true",
}


def sides(row: ConnectorOption) -> list[str]:
    others = {each.side for each in CONNECTOR_OPTIONS if each.name == row.name} - {row.side}
    anywhere = row.side == "both" or (row.verdict == "meaningless" and not others)
    return ["source", "sink"] if anywhere else [row.side]


CASES = [(row, side) for row in CONNECTOR_OPTIONS for side in sides(row)]
ACCEPTED = [case for case in CASES if case[0].verdict != "refused"]
REFUSED = [case for case in CASES if case[0].verdict == "refused"]


def parse(side: str, options: dict[str, str]) -> object:
    given = {name.lower(): value for name, value in options.items()}
    if {"subscribepattern", "assign"} & set(given):
        given.pop("subscribe", None)
    make: Callable[..., object] = source_options if side == "source" else sink_options
    return make(SERVERS | given, {}, streaming=False)


@pytest.mark.parametrize(("row", "side"), ACCEPTED, ids=lambda each: getattr(each, "name", each))
def test_an_option_is_accepted_as_the_table_says(row: ConnectorOption, side: str) -> None:
    value = VALUES.get(row.name, "7")
    parsed = parse(side, REQUIRED[side] | {row.name: value})
    if row.verdict == "meaningless":
        assert parsed == parse(side, REQUIRED[side])


@pytest.mark.parametrize(("row", "side"), REFUSED, ids=lambda each: getattr(each, "name", each))
def test_an_option_is_refused_with_the_table_s_reason(row: ConnectorOption, side: str) -> None:
    name = row.name.replace("*", "mechanism").lower()
    with pytest.raises(OptionError) as refused:
        parse(side, REQUIRED[side] | {name: "x"})
    assert str(refused.value) == f"option '{name}' is refused: {row.note.replace('`', '')}"


@pytest.mark.parametrize("name", ONE_VALUE)
def test_an_option_with_one_value_refuses_another_with_the_reason(name: str) -> None:
    (row,) = (each for each in CONNECTOR_OPTIONS if each.name == name)
    with pytest.raises(OptionError) as refused:
        parse("sink", REQUIRED["sink"] | {name: ONE_VALUE[name]})
    assert str(refused.value).endswith(row.note.replace("`", ""))


def test_every_row_of_the_table_has_its_reason() -> None:
    assert [row.name for row in CONNECTOR_OPTIONS if row.verdict != "works" and not row.note] == []


def test_a_name_stands_once_for_each_side() -> None:
    names = [(row.name.lower(), row.side) for row in CONNECTOR_OPTIONS]
    assert len(set(names)) == len(names)


def test_an_option_that_just_works_has_a_note_where_there_is_more_to_say() -> None:
    assert note("KAFKA.client.id") == "default fencelog-spark"
    assert note("endingOffsets") == note("endingTimestamp") == "batch reads only"
    assert note("topic") == note("no.such.option") == ""
