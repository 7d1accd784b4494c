"""The broker's settings: flag over environment over file, in Kafka's key names."""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from fencelog.coordination.transaction.retention import ID_CHECK_S, ID_EXPIRATION_MS
from fencelog.coordination.transaction.shard import TIMEOUT_MS_MAX
from fencelog.errors import FencelogError, error_text
from fencelog.log.config import InvalidConfigError, LogConfig
from fencelog.log.producers import PRODUCER_EXPIRATION_MS
from fencelog.storage.recover import Durability


class ConfigError(FencelogError):
    """A setting has no meaning; the text names key, value, place and what is allowed."""


@dataclass(frozen=True, kw_only=True)
class BrokerConfig:
    """One broker's settings. The comment behind each is its key in files and environment."""

    data_dir: str
    host: str = "127.0.0.1"
    port: int = 9092
    advertised_host: str | None = None  # advertised.listeners
    advertised_port: int | None = None
    durability: Durability = "fsync"  # durability
    node_id: int = 1  # node.id
    num_partitions: int = 1  # num.partitions
    auto_create_topics: bool = True  # auto.create.topics.enable
    internal_partitions: int = 16  # transaction.state.log.num.partitions
    frame_bytes_max: int = 100 * 1024 * 1024  # socket.request.max.bytes
    connections_max: int = 10_000  # max.connections
    queued_bytes_max: int = 64 * 1024 * 1024  # queued.max.request.bytes
    frame_timeout_s: float = 60.0  # socket.frame.timeout.ms
    idle_timeout_s: float = 600.0  # connections.max.idle.ms
    transaction_timeout_ms_max: int = TIMEOUT_MS_MAX  # transaction.max.timeout.ms
    transactional_id_expiration_ms: int = ID_EXPIRATION_MS  # transactional.id.expiration.ms
    # transaction.remove.expired.transaction.cleanup.interval.ms
    transactional_id_check_s: float = ID_CHECK_S
    producer_expiration_ms: int = PRODUCER_EXPIRATION_MS  # producer.id.expiration.ms
    fetch_bytes_max: int = 55 * 1024 * 1024  # fetch.max.bytes
    partitions_max: int = 10_000  # fencelog.max.partitions
    group_members_max: int = 10_000  # group.max.size
    group_session_timeout_ms_min: int = 6_000  # group.min.session.timeout.ms
    group_session_timeout_ms_max: int = 1_800_000  # group.max.session.timeout.ms
    group_initial_delay_s: float = 3.0  # group.initial.rebalance.delay.ms
    offsets_retention_minutes: int = 7 * 24 * 60  # offsets.retention.minutes
    offsets_retention_check_s: float = 600.0  # offsets.retention.check.interval.ms
    offset_metadata_bytes_max: int = 4096  # offset.metadata.max.bytes
    upkeep_interval_s: float = 300.0  # log.retention.check.interval.ms
    compaction_enabled: bool = True  # log.cleaner.enable
    compaction_interval_s: float = 15.0  # log.cleaner.backoff.ms
    # The intervals below have no key.
    checkpoint_interval_s: float = 10.0
    sweep_interval_s: float = 5.0
    resume_timeout_s: float = 10.0
    """How long a start waits for the markers of decided transactions to be written."""
    markers_wait_s: float = 1.0
    """How long a producer's first write waits for the markers of its last transaction.

    They are as good as written when EndTxn is answered, and a client's own back-off would cost it
    more.
    """
    topic_defaults: Mapping[str, str] = field(default_factory=dict)  # log.* keys
    log_config: LogConfig = field(default_factory=LogConfig)


def _whole(text: str, low: int, high: int) -> int:
    value = int(text)
    if not low <= value <= high:
        raise ValueError
    return value


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError
    return text.lower() == "true"


_INT_KEYS = {
    "node.id": ("node_id", 0, 2**31 - 1),
    "broker.id": ("node_id", 0, 2**31 - 1),
    "num.partitions": ("num_partitions", 1, 10_000),
    "transaction.state.log.num.partitions": ("internal_partitions", 1, 1000),
    "socket.request.max.bytes": ("frame_bytes_max", 1024, 2**31 - 1),
    "max.connections": ("connections_max", 1, 10**6),
    "queued.max.request.bytes": ("queued_bytes_max", 1024, 2**40),
    "transaction.max.timeout.ms": ("transaction_timeout_ms_max", 1, 2**31 - 1),
    "transactional.id.expiration.ms": ("transactional_id_expiration_ms", 1, 2**31 - 1),
    "producer.id.expiration.ms": ("producer_expiration_ms", 1, 2**31 - 1),
    "fetch.max.bytes": ("fetch_bytes_max", 1024, 2**31 - 1),
    "fencelog.max.partitions": ("partitions_max", 1, 10**6),
    "offsets.retention.minutes": ("offsets_retention_minutes", 1, 2**31 - 1),
    "group.max.size": ("group_members_max", 1, 2**31 - 1),
    "group.min.session.timeout.ms": ("group_session_timeout_ms_min", 1, 2**31 - 1),
    "group.max.session.timeout.ms": ("group_session_timeout_ms_max", 1, 2**31 - 1),
    "offset.metadata.max.bytes": ("offset_metadata_bytes_max", 1, 2**15 - 1),
}
_MS_KEYS = {
    "group.initial.rebalance.delay.ms": "group_initial_delay_s",
    "offsets.retention.check.interval.ms": "offsets_retention_check_s",
    "socket.frame.timeout.ms": "frame_timeout_s",
    "connections.max.idle.ms": "idle_timeout_s",
    "log.retention.check.interval.ms": "upkeep_interval_s",
    "log.cleaner.backoff.ms": "compaction_interval_s",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "transactional_id_check_s",
}
_ZERO_IS_OFF = ("group.initial.rebalance.delay.ms",)
LOG_KEYS = {
    "log.segment.bytes": "segment.bytes",
    "log.roll.ms": "segment.ms",
    "log.index.size.max.bytes": "segment.index.bytes",
    "log.index.interval.bytes": "index.interval.bytes",
    "message.max.bytes": "max.message.bytes",
    "log.message.timestamp.type": "message.timestamp.type",
    "log.message.timestamp.before.max.ms": "message.timestamp.before.max.ms",
    "log.message.timestamp.after.max.ms": "message.timestamp.after.max.ms",
    "log.retention.ms": "retention.ms",
    "log.retention.bytes": "retention.bytes",
    "log.cleanup.policy": "cleanup.policy",
    "group.fence": "group.fence",
    "log.cleaner.delete.retention.ms": "delete.retention.ms",
    "log.cleaner.min.compaction.lag.ms": "min.compaction.lag.ms",
    "log.cleaner.max.compaction.lag.ms": "max.compaction.lag.ms",
    "log.cleaner.min.cleanable.ratio": "min.cleanable.dirty.ratio",
}
"""Kafka's broker-wide defaults of topic settings, and the topic's own name for each."""
_TRUTH_KEYS = {
    "auto.create.topics.enable": "auto_create_topics",
    "log.cleaner.enable": "compaction_enabled",
}
_OTHER_KEYS = ("durability", "listeners", "advertised.listeners", *_TRUTH_KEYS)
# Keys of a stock server.properties that one node has no use for.
_IGNORED_PREFIXES = (
    "process.roles",
    "controller.",
    "num.network.threads",
    "num.io.threads",
    "socket.send.",
    "socket.receive.",
    "log.dirs",
    "log.dir",
    "zookeeper.",
    "inter.broker.",
    "listener.security.",
    "offsets.topic.",
    "group.",
    "num.recovery.",
    "log.cleaner.threads",
    "log.cleaner.io.",
    "log.cleaner.dedupe.",
    "log.retention.hours",
    "log.flush.",
    "transaction.state.log.replication.factor",
    "transaction.state.log.min.isr",
    "transaction.state.log.segment.bytes",
    "transaction.state.log.load.",
    "transaction.abort.timed.out.",
    "producer.id.expiration.check.",
    "share.",
)


def parse_address(text: str, what: str) -> tuple[str, int]:
    """Split HOST:PORT, also ``PLAINTEXT://HOST:PORT`` and ``[::1]:PORT``; port 0: any free one."""
    address = text.removeprefix("PLAINTEXT://")
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{what}: {text!r} is not HOST:PORT, for example 127.0.0.1:9092")
    return host.strip("[]") or "127.0.0.1", int(port)


def read_file(path: str) -> dict[str, str]:
    """Read a ``.toml`` file (dotted keys or tables) or a Java properties file into flat keys."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--config {error_text(error)}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--config {path}: not UTF-8: {error.reason}") from error
    if path.endswith(".toml"):
        try:
            return _flat(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"--config {path}: {error}") from error
    pairs = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        key, equals, value = stripped.partition("=")
        if not equals:
            raise ConfigError(f"--config {path}, line {number}: {stripped!r} is not key=value")
        pairs[key.strip()] = value.strip()
    return pairs


def _flat(table: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    pairs: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            pairs.update(_flat(value, f"{prefix}{key}."))
        else:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            pairs[f"{prefix}{key}"] = text
    return pairs


def read_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Settings by their environment names, as ``KAFKA_LOG_RETENTION_MS``, ``FENCELOG_DURABILITY``.

    Only keys that exist are taken: other programs use variables that begin with KAFKA_ as well.
    """
    known = {*_INT_KEYS, *_MS_KEYS, *LOG_KEYS, *_OTHER_KEYS}
    pairs = {}
    for name, value in environ.items():
        for prefix in ("KAFKA_", "FENCELOG_"):
            key = name.removeprefix(prefix).lower().replace("_", ".")
            if name.startswith(prefix) and key in known:
                pairs[key] = value
    return pairs


def _setting(key: str, value: str, where: str) -> dict[str, object]:
    """The fields that one key sets; topic defaults are gathered by the caller."""
    try:
        if key in _INT_KEYS:
            name, low, high = _INT_KEYS[key]
            return {name: _whole(value, low, high)}
        if key in _MS_KEYS:
            return {_MS_KEYS[key]: _whole(value, 0 if key in _ZERO_IS_OFF else 1, 2**40) / 1000}
        if key in _TRUTH_KEYS:
            return {_TRUTH_KEYS[key]: _truth(value)}
        if key == "durability" and value in ("fsync", "os"):
            return {"durability": value}
    except ValueError:
        pass
    if key == "listeners":
        host, port = parse_address(value.split(",", maxsplit=1)[0], f"{where}: listeners")
        return {"host": host, "port": port}
    if key == "advertised.listeners":
        address = value.split(",", maxsplit=1)[0]
        host, port = parse_address(address, f"{where}: advertised.listeners")
        return {"advertised_host": host, "advertised_port": port}
    if key in _INT_KEYS:
        _, low, high = _INT_KEYS[key]
        allowed = f"a whole number from {low} to {high}"
    else:
        allowed = "true or false" if key in _TRUTH_KEYS else "a positive whole number"
        if key == "durability":
            allowed = "fsync or os"
    raise ConfigError(f"{where}: {key}={value!r}: expected {allowed}")


def _apply(config: BrokerConfig, pairs: Mapping[str, str], where: str) -> BrokerConfig:
    changes: dict[str, object] = {}
    defaults = dict(config.topic_defaults)
    for key, value in pairs.items():
        if key in LOG_KEYS:
            defaults[LOG_KEYS[key]] = value
        elif key in _INT_KEYS or key in _MS_KEYS or key in _OTHER_KEYS:
            changes.update(_setting(key, value, where))
        elif not key.startswith(_IGNORED_PREFIXES):
            raise ConfigError(f"{where}: {key} is not a setting of fencelog")
    try:
        log_config = LogConfig.from_topic_config(defaults)
    except InvalidConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    return _replaced(config, {**changes, "topic_defaults": defaults, "log_config": log_config})


def _replaced(config: BrokerConfig, changes: Mapping[str, object]) -> BrokerConfig:
    names = {f.name for f in fields(config)}
    assert changes.keys() <= names, changes.keys() - names
    return replace(config, **changes)  # type: ignore[arg-type]  # names and kinds were checked above


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What the command line said; None where it said nothing."""

    data_dir: str
    listen: str | None = None
    durability: str | None = None
    config: str | None = None

    def resolve(self, environ: Mapping[str, str] | None = None) -> BrokerConfig:
        """Join file, environment and flags, the later ones winning. Raises ConfigError."""
        config = BrokerConfig(data_dir=self.data_dir)
        if self.config is not None:
            config = _apply(config, read_file(self.config), self.config)
        config = _apply(
            config, read_environment(os.environ if environ is None else environ), "environment"
        )
        if self.durability is not None:
            config = _apply(config, {"durability": self.durability}, "--durability")
        if self.listen is not None:
            host, port = parse_address(self.listen, "--listen")
            config = replace(config, host=host, port=port)
        return config
