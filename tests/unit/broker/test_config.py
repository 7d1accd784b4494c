"""Flag over environment over file, in Kafka's names, with errors that say where."""

from pathlib import Path

import pytest

from fencelog.broker.config import BrokerConfig, ConfigError, Flags, parse_address


def resolve(
    tmp_path: Path,
    text: str = "",
    name: str = "server.properties",
    environ: dict[str, str] | None = None,
    **flags: str,
) -> BrokerConfig:
    file = tmp_path / name
    file.write_text(text)
    return Flags(data_dir="d", config=str(file), **flags).resolve(environ or {})


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    text = "durability=os\nnum.partitions=2\nnode.id=7\nlisteners=PLAINTEXT://127.0.0.1:1\n"
    environ = {"KAFKA_NUM_PARTITIONS": "3", "FENCELOG_DURABILITY": "os"}
    config = resolve(tmp_path, text, environ=environ, durability="fsync", listen="127.0.0.1:2")
    assert (config.node_id, config.num_partitions) == (7, 3)
    assert (config.durability, config.port) == ("fsync", 2)


def test_toml_takes_tables_and_dotted_keys(tmp_path: Path) -> None:
    text = 'durability = "os"\nauto.create.topics.enable = false\n[log]\nretention.ms = 5\n'
    config = resolve(tmp_path, text, name="fencelog.toml")
    assert config.durability == "os"
    assert not config.auto_create_topics
    assert config.log_config.retention_ms == 5
    assert config.topic_defaults == {"retention.ms": "5"}


def test_a_stock_server_properties_is_accepted(tmp_path: Path) -> None:
    text = "# KRaft\nprocess.roles=broker,controller\nlog.dirs=/tmp/x\nnum.io.threads=8\n"
    assert resolve(tmp_path, text).port == 9092


def test_variables_of_other_programs_are_left_alone(tmp_path: Path) -> None:
    environ = {"KAFKA_HOME": "/opt", "KAFKA_HEAP_OPTS": "-Xmx1G", "FENCELOG_COLOR": "x"}
    assert resolve(tmp_path, environ=environ) == resolve(tmp_path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("num.partitions=none", "num.partitions='none': expected a whole number from 1"),
        ("num.partitions=0", "expected a whole number from 1 to 10000"),
        ("durability=maybe", "expected fsync or os"),
        ("auto.create.topics.enable=1", "expected true or false"),
        ("log.retention.ms=soon", "retention.ms"),
        ("no.such.key=1", "no.such.key is not a setting of fencelog"),
        ("just words", "line 1: 'just words' is not key=value"),
        ("listeners=nowhere", "is not HOST:PORT"),
    ],
)
def test_a_setting_without_meaning_is_refused_with_its_place(
    tmp_path: Path, text: str, told: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        resolve(tmp_path, text)
    assert told in str(refusal.value)
    assert "server.properties" in str(refusal.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--config .*/none\.toml: No such file or directory$"):
        Flags(data_dir="d", config=str(tmp_path / "none.toml")).resolve({})


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9092", ("127.0.0.1", 9092)),
        ("PLAINTEXT://:0", ("127.0.0.1", 0)),
        ("[::1]:5", ("::1", 5)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text, "--listen") == address


@pytest.mark.parametrize("text", ["", "9092", "host", "host:", "host:x", "host:70000"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        parse_address(text, "--listen")


def test_settings_of_groups_have_kafkas_names_and_units(tmp_path: Path) -> None:
    text = (
        "group.initial.rebalance.delay.ms=0\ngroup.min.session.timeout.ms=100\n"
        "group.max.size=7\noffsets.retention.minutes=60\ngroup.fence=required\n"
        "group.coordinator.rebalance.protocols=classic\n"
    )
    config = resolve(tmp_path, text, environ={"FENCELOG_GROUP_MAX_SIZE": "8"})
    assert config.group_initial_delay_s == 0
    assert config.group_session_timeout_ms_min == 100
    assert config.group_members_max == 8
    assert config.offsets_retention_minutes == 60
    assert config.topic_defaults == {"group.fence": "required"}
    with pytest.raises(ConfigError, match=r"group\.fence"):
        resolve(tmp_path, "group.fence=perhaps\n")


def test_expiry_is_set_by_kafkas_names(tmp_path: Path) -> None:
    text = (
        "transactional.id.expiration.ms=5000\nproducer.id.expiration.ms=6000\n"
        "transaction.remove.expired.transaction.cleanup.interval.ms=700\n"
        "transaction.abort.timed.out.transaction.cleanup.interval.ms=10000\n"
        "producer.id.expiration.check.interval.ms=600000\n"
    )
    config = resolve(tmp_path, text)
    assert config.transactional_id_expiration_ms == 5000
    assert config.transactional_id_check_s == 0.7
    assert config.producer_expiration_ms == 6000
    with pytest.raises(ConfigError, match=r"producer\.id\.expiration\.ms"):
        resolve(tmp_path, "producer.id.expiration.ms=never\n")


def test_compaction_is_set_by_kafkas_names() -> None:
    environment = {"KAFKA_LOG_CLEANER_ENABLE": "false", "KAFKA_LOG_CLEANER_BACKOFF_MS": "50"}
    config = Flags(data_dir="d").resolve(environment)
    assert (config.compaction_enabled, config.compaction_interval_s) == (False, 0.05)
    with pytest.raises(ConfigError, match="true or false"):
        Flags(data_dir="d").resolve({"KAFKA_LOG_CLEANER_ENABLE": "maybe"})
