"""File, environment and flags become one set of values, and nothing of them is lost in silence."""

import re
from itertools import permutations

import pytest

from fencelog.settings.given import ConfigError
from fencelog.settings.joined import Joined, join
from fencelog.settings.sources import from_environment, from_properties

HOUR_MS = 3_600_000
RETENTION = ("log.retention.hours=3", "log.retention.minutes=2", "log.retention.ms=1")


def joined(file: str = "", **environ: str) -> Joined:
    return join([from_properties(file, "f"), from_environment(environ)])


def refusal(file: str = "", **environ: str) -> str:
    with pytest.raises(ConfigError) as refused:
        joined(file, **environ)
    return str(refused.value)


@pytest.mark.parametrize("lines", list(permutations(RETENTION)))
def test_milliseconds_override_minutes_and_those_hours_in_any_order(lines: tuple[str, ...]) -> None:
    found = joined("\n".join(lines))
    assert found.values == {"log.retention.ms": "1"}
    of_file = [f"f, line {lines.index(line) + 1}: {line.partition('=')[0]}" for line in RETENTION]
    assert found.notices == [
        f"{place} has no effect: it is overridden by {of_file[2]}"
        for place in (of_file[1], of_file[0])
    ]


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("log.retention.hours=8760", "log.retention.ms", 8760 * HOUR_MS),
        ("log.retention.minutes=5", "log.retention.ms", 5 * 60_000),
        ("log.retention.hours=-1", "log.retention.ms", -1),
        ("log.roll.hours=2", "log.roll.ms", 2 * HOUR_MS),
        ("log.roll.jitter.hours=1", "log.roll.jitter.ms", HOUR_MS),
        ("broker.id=7", "node.id", 7),
        ("broker.id=7\nnode.id=8", "node.id", 8),
    ],
)
def test_kafkas_other_names_set_the_same(text: str, key: str, value: int) -> None:
    assert joined(text).values == {key: str(value)}


def test_a_later_source_overrides_by_setting_whatever_name_it_uses() -> None:
    found = joined("log.retention.ms=5", KAFKA_LOG_RETENTION_HOURS="1")
    assert found.values == {"log.retention.ms": str(HOUR_MS)}
    assert list(found.given["log.retention.ms"]) == ["log.retention.hours"]


def test_a_name_that_is_overridden_must_have_a_meaning_too() -> None:
    assert "log.retention.hours='x'" in refusal("log.retention.ms=1\nlog.retention.hours=x")


def test_two_names_that_say_the_same_need_no_word() -> None:
    found = joined("log.retention.minutes=60\nlog.retention.hours=1")
    assert found.values == {"log.retention.ms": str(HOUR_MS)}
    assert found.notices == []


def test_of_a_name_given_twice_the_later_holds_and_the_earlier_is_named() -> None:
    found = joined("num.partitions=2\nnum.partitions=3")
    assert found.values == {"num.partitions": "3"}
    lost = "f, line 1: num.partitions has no effect"
    assert found.notices == [f"{lost}: it is overridden by f, line 2: num.partitions"]


def test_our_own_variable_overrides_kafkas() -> None:
    found = joined(KAFKA_NUM_PARTITIONS="2", FENCELOG_NUM_PARTITIONS="3")
    assert found.values == {"num.partitions": "3"}
    assert "KAFKA_NUM_PARTITIONS has no effect" in found.notices[0]


def test_what_has_no_effect_is_named_in_one_line_with_its_places() -> None:
    found = joined(
        "zookeeper.connect=z\nlog.flush.interval.messages=1\nssl.keystore.password=secret\n"
        "listener.name.internal.ssl.keystore.location=x\nlistener.name.a.plain.sasl.jaas.config=x",
        KAFKA_NUM_IO_THREADS="8",
    )
    assert found.notices == [
        "these settings have no effect here: zookeeper.connect, log.flush.interval.messages, "
        "ssl.keystore.password, listener.name.internal.ssl.keystore.location, "
        "listener.name.a.plain.sasl.jaas.config (f), "
        "KAFKA_NUM_IO_THREADS (environment)"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "process.roles=broker,controller",
        "process.roles=broker",
        "controller.quorum.voters=1@localhost:9093",
        "default.replication.factor=1",
        "compression.type=zstd",
        "min.insync.replicas=2",
        "remote.log.storage.system.enable=false",
        "max.connections.per.ip=2147483647",
        "authorizer.class.name=",
    ],
)
def test_what_asks_for_what_is_the_case_anyway_needs_no_word(text: str) -> None:
    assert joined(text).notices == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("process.roles=controller", "write broker,controller"),
        ("process.roles=observer", "expected broker,controller or broker"),
        ("controller.quorum.voters=1@a:1,2@b:1", "the controller is one of the brokers"),
        ("controller.quorum.bootstrap.servers=a:1,b:1", "the controller is one of the brokers"),
        ("default.replication.factor=0", "expected a whole number from 1"),
        ("compression.type=brotli", "expected producer, uncompressed, gzip"),
        ("remote.log.storage.system.enable=true", "there is no tiered storage"),
        ("authorizer.class.name=A", "there is no authorization; leave it out"),
        ("delete.topic.enable=false", "clients can always delete topics"),
        ("max.connections.per.ip=9", "there is no such limit here"),
        ("create.topic.policy.class.name=P", "policies of one's own"),
        ("config.providers=file", "values are taken as they are written"),
        ("group.coordinator.rebalance.protocols=classic,consumer", "KIP-848"),
        ("port=9092", "port is no setting of Kafka any more; write listeners=PLAINTEXT://"),
        ("remote.storage.enable=true", "is a setting of a topic, not of the broker"),
        ("retention.ms=1", "the default of all topics is log.retention.ms"),
        ("group.fense=required", "did you mean group.fence?"),
        ("log.retention.hour=1", "did you mean log.retention.hours?"),
        ("zookeeper.conect=z", "did you mean zookeeper.connect?"),
        ("listener.name.internal=x", "listener.name.internal is not a setting of fencelog"),
        ("listener.name.a.ssl.keystore.locaton=x", "is not a setting of fencelog"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_the_reason(text: str, told: str) -> None:
    said = refusal(text)
    assert said.startswith("f, line 1: ")
    assert told in said


def test_continued_lines_and_escapes_are_javas() -> None:
    text = (
        "# a comment\nlog.cleanup.policy = compact,\\\n    delete\nnum\\u002epartitions : 4\nbad=1"
    )
    found = from_properties(text, "f").given
    assert [(each.key, each.text) for each in found][:2] == [
        ("log.cleanup.policy", "compact,delete"),
        ("num.partitions", "4"),
    ]
    assert [each.where for each in found] == ["f, line 2", "f, line 4", "f, line 5"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("FENCELOG_GROUP_FENSE", "did you mean FENCELOG_GROUP_FENCE?"),
        ("FENCELOG_RETENTION_MS", "the default of all topics is log.retention.ms"),
        ("FENCELOG_COLOR", "FENCELOG_COLOR is not a setting of fencelog"),
        ("FENCELOG_PORT", "FENCELOG_PORT is not a setting of fencelog"),
    ],
)
def test_an_unknown_variable_of_our_own_is_refused(name: str, told: str) -> None:
    assert told in refusal(**{name: "1"})


def test_variables_of_other_programs_and_of_other_ends_are_left_alone() -> None:
    others = {
        **dict.fromkeys(("KAFKA_HOME", "KAFKA_OPTS", "KAFKA_HEAP_OPTS", "KAFKA_LOG4J_OPTS"), "x"),
        **dict.fromkeys(("KAFKA_CLUSTER_ID", "KAFKA_VERSION", "KAFKA_BOOTSTRAP_SERVERS"), "x"),
        "KAFKA_PORT": "9092",
        "FENCELOG_PYTHON": "python3",
        "FENCELOG_BOOTSTRAP_SERVERS": "x:1",
        "FENCELOG_DEMO_STAGE_FOLDER": "/tmp",
        # What Kubernetes makes for services with the names fencelog and kafka-broker.
        "FENCELOG_PORT": "tcp://10.0.0.1:9092",
        "FENCELOG_PORT_9092_TCP_ADDR": "10.0.0.1",
        "FENCELOG_SERVICE_HOST": "10.0.0.1",
        "FENCELOG_SERVICE_PORT": "9092",
        "KAFKA_BROKER_SERVICE_PORT_CLIENT": "9092",
    }
    assert joined(**others) == joined()


def test_a_variable_of_kafkas_that_is_nearly_a_setting_gets_a_line() -> None:
    found = joined(KAFKA_ADVERTISED_LISTENER="a:1")
    assert re.fullmatch(
        ".*KAFKA_ADVERTISED_LISTENER .* KAFKA_ADVERTISED_LISTENERS.", *found.notices
    )
    assert not found.values
