"""The settings of fencelog, each once. Names, types and meanings are Kafka's where Kafka has it."""

from collections.abc import Mapping
from types import MappingProxyType

from fencelog.settings.cluster_table import CLUSTER_SETTINGS
from fencelog.settings.kinds import (
    DAY_MS,
    HOUR_MS,
    INT16_MAX,
    INT32_MAX,
    MINUTE_MS,
    OneOf,
    SomeOf,
    Text,
    Truth,
    Whole,
)
from fencelog.settings.setting import Setting, broker
from fencelog.settings.topic_table import TOPIC_SETTINGS

_INTERVAL_MS = Whole(1, 1 << 40, "ms")
_INT_MS = Whole(1, INT32_MAX, "ms")
_LISTENER = Text("list", "`PLAINTEXT://HOST:PORT`")
BROKER_SETTINGS = (
    *CLUSTER_SETTINGS,
    broker(
        "durability",
        OneOf(("fsync", "os")),
        "fsync",
        "what an acknowledged record survives: fsync a power cut, os a kill of the broker",
    ),
    broker(
        "listeners",
        _LISTENER,
        "PLAINTEXT://127.0.0.1:9092",
        "what to listen on: one plaintext address; without a host, 127.0.0.1",
    ),
    broker(
        "advertised.listeners",
        _LISTENER,
        "",
        "what clients are told to connect to, if it is another address",
    ),
    broker(
        "node.id",
        Whole(0, INT32_MAX),
        1,
        "the number of this broker",
        aliases=("broker.id",),
    ),
    broker(
        "num.partitions",
        Whole(1, 10_000),
        1,
        "of topics whose creator names no number",
    ),
    broker(
        "auto.create.topics.enable",
        Truth(),
        True,
        "whether a topic is created by being written to",
    ),
    broker(
        "transaction.state.log.num.partitions",
        Whole(1, 1000),
        16,
        "of each internal topic, when it is created",
    ),
    broker(
        "socket.request.max.bytes",
        Whole(1024, INT32_MAX, "bytes"),
        100 << 20,
        "largest request",
    ),
    broker(
        "queued.max.request.bytes",
        Whole(1024, 1 << 40, "bytes"),
        64 << 20,
        "requests that are being read or answered, over all connections",
    ),
    broker(
        "queued.max.response.bytes",
        Whole(1 << 20, 1 << 40, "bytes"),
        256 << 20,
        "responses that are being read from disk or sent, over all connections; while it is used "
        "up, fetches get less or wait. In a cluster a quarter of it is for other brokers",
    ),
    broker(
        "max.connections",
        Whole(1, 10**6),
        10_000,
        "at most three quarters of the files that the process may open (`ulimit -n`)",
    ),
    broker(
        "connections.max.idle.ms",
        _INTERVAL_MS,
        10 * MINUTE_MS,
        "after which an idle connection is closed",
    ),
    broker(
        "socket.frame.timeout.ms",
        _INTERVAL_MS,
        MINUTE_MS,
        "after which a connection with a half-sent request is closed",
    ),
    broker(
        "socket.response.timeout.ms",
        _INTERVAL_MS,
        30_000,
        "after which a connection that reads nothing of its responses is closed; while "
        "`queued.max.response.bytes` is used up, also one that reads less than 64 KiB/s",
    ),
    broker(
        "fetch.max.bytes",
        Whole(1024, INT32_MAX, "bytes"),
        55 << 20,
        "largest answer to a fetch",
    ),
    broker(
        "max.incremental.fetch.session.cache.slots",
        Whole(0, 10**6),
        1000,
        "fetch sessions that are kept; 0 none",
    ),
    broker(
        "fencelog.max.partitions",
        Whole(1, 10**6),
        10_000,
        "of all topics together",
    ),
    broker(
        "log.retention.check.interval.ms",
        _INTERVAL_MS,
        5 * MINUTE_MS,
        "how often logs are looked through for segments that are too old or too much",
    ),
    broker("log.cleaner.enable", Truth(), True, "whether compacted topics are compacted"),
    broker(
        "log.cleaner.backoff.ms",
        _INTERVAL_MS,
        15_000,
        "how often compaction looks for work",
    ),
    broker(
        "transaction.max.timeout.ms",
        _INT_MS,
        15 * MINUTE_MS,
        "largest timeout that a transactional producer may ask for",
    ),
    broker(
        "transactional.id.expiration.ms",
        _INT_MS,
        7 * DAY_MS,
        "how long a transactional id with nothing open is kept after its last use; its producer "
        "then asks for a new producer id (INVALID_PRODUCER_ID_MAPPING)",
    ),
    broker(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        _INT_MS,
        HOUR_MS,
        "how often expired transactional ids are looked for",
    ),
    broker(
        "producer.id.expiration.ms",
        _INT_MS,
        DAY_MS,
        "how long a partition knows a silent producer's sequences; a retry after that may be "
        "stored twice",
    ),
    broker(
        "group.initial.rebalance.delay.ms",
        Whole(0, INT32_MAX, "ms"),
        3000,
        "how long an empty group waits for more members; 0 in tests",
    ),
    broker(
        "group.min.session.timeout.ms",
        _INT_MS,
        6000,
        "shortest session timeout that a member may ask for",
    ),
    broker(
        "group.max.session.timeout.ms",
        _INT_MS,
        30 * MINUTE_MS,
        "longest session timeout that a member may ask for",
    ),
    broker("group.max.size", Whole(1, INT32_MAX), 10_000, "members of a group"),
    broker(
        "offsets.retention.minutes",
        Whole(1, INT32_MAX, "minutes"),
        7 * 24 * 60,
        "how long an idle group's offsets are kept",
    ),
    broker(
        "offsets.retention.check.interval.ms",
        _INTERVAL_MS,
        10 * MINUTE_MS,
        "how often expired offsets are looked for",
    ),
    broker(
        "offset.metadata.max.bytes",
        Whole(1, INT16_MAX, "bytes"),
        4096,
        "text beside a committed offset",
    ),
    broker(
        "transaction.state.log.min.isr",
        OneOf(("1",), "internal topics need no more than min.insync.replicas", "int"),
        "1",
        "copies that a record of `__transaction_state` needs",
        effect="fixed",
    ),
    broker(
        "delete.topic.enable",
        OneOf(("true",), "clients can always delete topics", "boolean"),
        "true",
        "whether topics can be deleted",
        effect="fixed",
    ),
    broker(
        "authorizer.class.name",
        OneOf(
            ("",),
            "there is no authorization; leave it out, and bind to an address that you trust",
        ),
        "",
        "who may do what: everybody everything",
        effect="fixed",
    ),
    broker(
        "remote.log.storage.system.enable",
        OneOf(("false",), "there is no tiered storage", "boolean"),
        "false",
        "whether segments are moved to remote storage",
        effect="fixed",
    ),
    broker(
        "group.coordinator.rebalance.protocols",
        SomeOf(("classic",), "groups speak the classic protocol; KIP-848 is not offered"),
        frozenset({"classic"}),
        "protocols of groups",
        effect="fixed",
    ),
    broker(
        "transaction.two.phase.commit.enable",
        OneOf(("false",), "two-phase commit (KIP-939) is not offered", "boolean"),
        "false",
        "whether a transaction may stay prepared without a timeout",
        effect="fixed",
    ),
)
"""What the broker is started with and keeps."""

SETTINGS = (*TOPIC_SETTINGS, *BROKER_SETTINGS)

TOPIC_KEYS: Mapping[str, Setting] = MappingProxyType({s.topic_key: s for s in TOPIC_SETTINGS})
"""By topic config name."""
DYNAMIC_KEYS: Mapping[str, Setting] = MappingProxyType({s.key: s for s in TOPIC_SETTINGS if s.key})
"""The settings that a running broker can change, by broker config name."""
BROKER_KEYS: Mapping[str, Setting] = MappingProxyType(
    {alias.key: s for s in SETTINGS for alias in s.names if alias.key}
)
"""All settings that a broker is started with, by each of their broker config names."""


def default_of(key: str) -> int:
    """The default of a broker setting that is a whole number, in its key's unit."""
    default: int = BROKER_KEYS[key].default
    return default
