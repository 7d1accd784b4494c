"""The broker's settings as it is started: flag over environment over file, in Kafka's key names."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fencelog.errors import error_text
from fencelog.log.config import InvalidConfigError, LogConfig
from fencelog.settings.fields import of_broker, read, seconds_of_broker
from fencelog.settings.given import ConfigError, Source
from fencelog.settings.joined import Joined, join
from fencelog.settings.listeners import listener_of
from fencelog.settings.membership import cluster_of
from fencelog.settings.metadata_url import EtcdUrl
from fencelog.settings.sources import from_environment, from_flags, from_properties, from_toml
from fencelog.settings.table import BROKER_KEYS, TOPIC_KEYS
from fencelog.storage.recover import Durability
from fencelog.storage.writeback import WritebackLimits


@dataclass(frozen=True, kw_only=True)
class BrokerConfig:
    """One broker's settings; names, defaults and ranges are those of the table of settings."""

    data_dir: str
    host: str = "127.0.0.1"
    port: int = 9092
    advertised_host: str | None = None
    advertised_port: int | None = None
    durability: Durability = of_broker("durability")
    node_id: int = of_broker("node.id")
    num_partitions: int = of_broker("num.partitions")
    auto_create_topics: bool = of_broker("auto.create.topics.enable")
    internal_partitions: int = of_broker("transaction.state.log.num.partitions")
    frame_bytes_max: int = of_broker("socket.request.max.bytes")
    connections_max: int = of_broker("max.connections")
    queued_bytes_max: int = of_broker("queued.max.request.bytes")
    queued_response_bytes_max: int = of_broker("queued.max.response.bytes")
    frame_timeout_s: float = seconds_of_broker("socket.frame.timeout.ms")
    response_timeout_s: float = seconds_of_broker("socket.response.timeout.ms")
    idle_timeout_s: float = seconds_of_broker("connections.max.idle.ms")
    transaction_timeout_ms_max: int = of_broker("transaction.max.timeout.ms")
    transactional_id_expiration_ms: int = of_broker("transactional.id.expiration.ms")
    transactional_id_check_s: float = seconds_of_broker(
        "transaction.remove.expired.transaction.cleanup.interval.ms"
    )
    producer_expiration_ms: int = of_broker("producer.id.expiration.ms")
    fetch_bytes_max: int = of_broker("fetch.max.bytes")
    fetch_sessions_max: int = of_broker("max.incremental.fetch.session.cache.slots")
    partitions_max: int = of_broker("fencelog.max.partitions")
    group_members_max: int = of_broker("group.max.size")
    group_session_timeout_ms_min: int = of_broker("group.min.session.timeout.ms")
    group_session_timeout_ms_max: int = of_broker("group.max.session.timeout.ms")
    group_initial_delay_s: float = seconds_of_broker("group.initial.rebalance.delay.ms")
    offsets_retention_minutes: int = of_broker("offsets.retention.minutes")
    offsets_retention_check_s: float = seconds_of_broker("offsets.retention.check.interval.ms")
    offset_metadata_bytes_max: int = of_broker("offset.metadata.max.bytes")
    upkeep_interval_s: float = seconds_of_broker("log.retention.check.interval.ms")
    compaction_enabled: bool = of_broker("log.cleaner.enable")
    compaction_interval_s: float = seconds_of_broker("log.cleaner.backoff.ms")
    metadata: str = of_broker("metadata")
    metadata_ca_file: str = of_broker("metadata.ca.file")
    metadata_cert_file: str = of_broker("metadata.cert.file")
    metadata_key_file: str = of_broker("metadata.key.file")
    metadata_user: str = of_broker("metadata.user")
    metadata_password_file: str = of_broker("metadata.password.file")
    rack: str = of_broker("broker.rack")
    replication_factor: int = of_broker("default.replication.factor")
    internal_replication_factor: int = of_broker("offsets.topic.replication.factor")
    replication_commit: str = of_broker("replication.commit")
    replica_lag_s: float = seconds_of_broker("replica.lag.time.max.ms")
    session_timeout_s: float = seconds_of_broker("broker.session.timeout.ms")
    cluster: EtcdUrl | None = None
    """What ``metadata`` names; None: the broker is alone."""
    topic_defaults: Mapping[str, str] = field(default_factory=dict)
    """Defaults of topic settings that were given at the start, by topic config name."""
    given: Mapping[str, str] = field(default_factory=dict)
    """What was given at the start, as it was written, by broker config name."""
    # What follows are no settings.
    tail_bytes_max: int = 32 << 20
    """Memory of the newest batches, which readers at the end of a log get without a read.

    At 500 MB/s these are the last 60 ms, ten times what such a reader is behind; more would only
    push other memory out of the processor's caches.
    """
    writeback: WritebackLimits = field(default_factory=WritebackLimits)
    """How much of the logs a start may have to read after an unclean stop."""
    checkpoint_interval_s: float = 10.0
    sweep_interval_s: float = 5.0
    resume_timeout_s: float = 10.0
    """How long a start waits for the markers of decided transactions to be written."""
    markers_wait_s: float = 1.0
    """How long a producer's first write waits for the markers of its last transaction.

    They are as good as written when EndTxn is answered, and a client's own back-off would cost it
    more.
    """


def read_file(path: str) -> Source:
    """Read a ``.toml`` file or a Java properties file. Raises ConfigError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--config {error_text(error)}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--config {path}: not UTF-8: {error.reason}") from error
    return from_toml(text, path) if path.endswith(".toml") else from_properties(text, path)


class Resolved(NamedTuple):
    """The settings to start with, and what the log should say of them."""

    config: BrokerConfig
    notices: list[str]


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What the command line said; None where it said nothing."""

    data_dir: str
    listen: str | None = None
    durability: str | None = None
    metadata: str | None = None
    node_id: str | None = None
    config: str | None = None

    def resolve(self, environ: Mapping[str, str] | None = None) -> Resolved:
        """Join file, environment and flags, the later ones winning. Raises ConfigError."""
        sources = [] if self.config is None else [read_file(self.config)]
        sources.append(from_environment(os.environ if environ is None else environ))
        flags = {
            "--listen": self.listen,
            "--durability": self.durability,
            "--metadata": self.metadata,
            "--node-id": self.node_id,
        }
        sources.append(from_flags(flags))
        joined = join(sources)
        return Resolved(_configured(self.data_dir, joined), joined.notices)


def _configured(data_dir: str, joined: Joined) -> BrokerConfig:
    fields = read(BrokerConfig, joined.values)
    for key, prefix in (("listeners", ""), ("advertised.listeners", "advertised_")):
        listener = listener_of(joined, key)
        if listener is not None:
            fields[f"{prefix}host"], fields[f"{prefix}port"] = listener.host, listener.port
    fields["cluster"] = cluster_of(joined)
    if fields["cluster"] is not None and "durability" not in fields:
        fields["durability"] = "os"  # what a power cut takes from one, the others have
    defaults = {
        BROKER_KEYS[key].topic_key: text
        for key, text in joined.values.items()
        if BROKER_KEYS[key].topic_key
    }
    try:
        LogConfig.from_topic_config(defaults)
    except InvalidConfigError as error:
        by = joined.in_force(TOPIC_KEYS[error.key].key)
        raise (by.refused(str(error)) if by else ConfigError(str(error))) from error
    given = {name: each.text for named in joined.given.values() for name, each in named.items()}
    return BrokerConfig(data_dir=data_dir, topic_defaults=defaults, given=given, **fields)
