"""The broker's settings as it is started: from file, environment and flags to one configuration."""

from pathlib import Path

import pytest

from fencelog.broker.config import BrokerConfig, Flags, Resolved
from fencelog.settings.given import ConfigError
from fencelog.settings.metadata_url import EtcdUrl
from tests.support.server_properties import STOCK


def resolve(
    tmp_path: Path,
    text: str = "",
    name: str = "server.properties",
    environ: dict[str, str] | None = None,
    **flags: str,
) -> Resolved:
    file = tmp_path / name
    file.write_text(text)
    return Flags(data_dir="d", config=str(file), **flags).resolve(environ or {})


def configured(
    tmp_path: Path, text: str = "", environ: dict[str, str] | None = None, **flags: str
) -> BrokerConfig:
    return resolve(tmp_path, text, environ=environ, **flags).config


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    text = "durability=os\nnum.partitions=2\nnode.id=7\nlisteners=PLAINTEXT://127.0.0.1:1\n"
    environ = {"KAFKA_NUM_PARTITIONS": "3", "FENCELOG_DURABILITY": "os"}
    config = configured(tmp_path, text, environ, durability="fsync", listen="127.0.0.1:2")
    assert (config.node_id, config.num_partitions) == (7, 3)
    assert (config.durability, config.port) == ("fsync", 2)


def test_toml_takes_tables_and_dotted_keys(tmp_path: Path) -> None:
    text = (
        'durability = "os"\nauto.create.topics.enable = false\n'
        '[log]\nretention.ms = 5\ncleanup.policy = ["compact", "delete"]\nsegment.bytes = 100_000\n'
    )
    config = resolve(tmp_path, text, name="fencelog.toml").config
    assert config.durability == "os"
    assert not config.auto_create_topics
    assert config.topic_defaults == {
        "retention.ms": "5",
        "cleanup.policy": "compact,delete",
        "segment.bytes": "100000",
    }


def test_a_stock_server_properties_of_kafka_4_starts_and_names_what_has_no_effect(
    tmp_path: Path,
) -> None:
    config, notices = resolve(tmp_path, STOCK)
    assert (config.host, config.port) == ("127.0.0.1", 9092)
    assert (config.advertised_host, config.advertised_port) == ("localhost", 9092)
    assert config.topic_defaults["retention.ms"] == str(7 * 24 * 60 * 60 * 1000)
    named = (
        "inter.broker.listener.name, num.network.threads, num.io.threads, "
        "socket.send.buffer.bytes, socket.receive.buffer.bytes, log.dirs, "
        "num.recovery.threads.per.data.dir, share.coordinator.state.topic.replication.factor, "
        "share.coordinator.state.topic.min.isr"
    )
    file = tmp_path / "server.properties"
    assert notices == [f"these settings have no effect here: {named} ({file})"]


def test_a_configuration_without_a_word_of_its_own_has_the_defaults_of_the_table(
    tmp_path: Path,
) -> None:
    assert resolve(tmp_path) == Resolved(BrokerConfig(data_dir="d"), [])
    config = BrokerConfig(data_dir="d")
    assert (config.idle_timeout_s, config.frame_bytes_max) == (600.0, 100 * 1024 * 1024)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("\nnum.partitions=0", "line 2: num.partitions='0': expected a whole number from 1 to "),
        ("durability=maybe", "expected fsync or os"),
        ("no.such.key=1", "no.such.key is not a setting of fencelog"),
        ("just words", "line 1: just is not a setting of fencelog"),
        ("listeners=nowhere", "is not HOST:PORT"),
        ("log.retention.ms=\\u00zz", "line 1: Invalid"),
        (
            "log.cleaner.min.compaction.lag.ms=9\nlog.cleaner.max.compaction.lag.ms=8",
            "min.compaction.lag.ms: above max.compaction.lag.ms",
        ),
    ],
)
def test_a_setting_without_meaning_is_refused_with_its_place(
    tmp_path: Path, text: str, told: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        resolve(tmp_path, text)
    assert told in str(refusal.value)
    assert "server.properties" in str(refusal.value)


def test_the_names_and_texts_that_were_given_are_kept_to_be_shown(tmp_path: Path) -> None:
    text = "log.retention.hours=2\nlog.retention.ms=1\nlog.roll.ms=5\nnum.io.threads=8\n"
    config = configured(tmp_path, text, {"KAFKA_LOG_ROLL_HOURS": "3"}, listen="h:1")
    assert config.given == {
        "log.retention.ms": "1",
        "log.retention.hours": "2",
        "log.roll.hours": "3",
        "listeners": "h:1",
    }
    assert config.topic_defaults == {"retention.ms": "1", "segment.ms": str(3 * 3_600_000)}


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--config .*/none\.toml: No such file or directory$"):
        Flags(data_dir="d", config=str(tmp_path / "none.toml")).resolve({})


def test_settings_of_groups_have_kafkas_names_and_units(tmp_path: Path) -> None:
    text = (
        "group.initial.rebalance.delay.ms=0\ngroup.min.session.timeout.ms=100\n"
        "group.max.size=7\noffsets.retention.minutes=60\ngroup.fence=required\n"
        "group.coordinator.rebalance.protocols=classic\n"
    )
    config = configured(tmp_path, text, {"FENCELOG_GROUP_MAX_SIZE": "8"})
    assert config.group_initial_delay_s == 0
    assert config.group_session_timeout_ms_min == 100
    assert config.group_members_max == 8
    assert config.offsets_retention_minutes == 60
    assert config.topic_defaults == {"group.fence": "required"}


def test_expiry_is_set_by_kafkas_names(tmp_path: Path) -> None:
    text = (
        "transactional.id.expiration.ms=5000\nproducer.id.expiration.ms=6000\n"
        "transaction.remove.expired.transaction.cleanup.interval.ms=700\n"
        "transaction.abort.timed.out.transaction.cleanup.interval.ms=10000\n"
        "producer.id.expiration.check.interval.ms=600000\n"
    )
    config = configured(tmp_path, text)
    assert config.transactional_id_expiration_ms == 5000
    assert config.transactional_id_check_s == 0.7
    assert config.producer_expiration_ms == 6000


def test_compaction_is_set_by_kafkas_names() -> None:
    environment = {"KAFKA_LOG_CLEANER_ENABLE": "false", "KAFKA_LOG_CLEANER_BACKOFF_MS": "50"}
    config = Flags(data_dir="d").resolve(environment).config
    assert (config.compaction_enabled, config.compaction_interval_s) == (False, 0.05)


def test_a_broker_of_a_cluster_relies_on_the_others_in_a_power_cut_unless_told_otherwise(
    tmp_path: Path,
) -> None:
    flags = {"metadata": "etcd://h:2379/c", "node_id": "4"}
    config = resolve(tmp_path, **flags).config
    assert (config.durability, config.node_id) == ("os", 4)
    assert config.cluster == EtcdUrl(("h:2379",), "c")
    assert resolve(tmp_path, "durability=fsync", **flags).config.durability == "fsync"
