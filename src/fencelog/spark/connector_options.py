"""What becomes of each option of Spark's own Kafka connector: the one table of it.

Source: Spark's "Structured Streaming + Kafka Integration Guide", and for ``kafka.*`` the consumer
and producer settings of Apache Kafka. ``options`` reads its names and reasons from here, and
``tools.migration_page`` writes the guide's page from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Verdict: TypeAlias = Literal["works", "differs", "meaningless", "refused"]
"""Works as in the connector; works differently; accepted without effect; an error."""

Side: TypeAlias = Literal["source", "sink", "both"]


@dataclass(frozen=True, kw_only=True)
class ConnectorOption:
    """One option of the connector. A name that ends in ``*`` stands for all that begin so.

    ``note`` is the reason, or what is different; it may be empty where an option just works.
    """

    name: str
    side: Side
    verdict: Verdict
    note: str = ""

    @property
    def prefix(self) -> str | None:
        """What the names begin with that this row stands for; None where it is one name."""
        return self.name.removesuffix("*").lower() if self.name.endswith("*") else None


def refusal(name: str) -> str | None:
    """Why an option is refused, whatever its value; None if it is not in the table as such."""
    row = _row(name)
    return note(name) if row is not None and row.verdict == "refused" else None


def note(name: str) -> str:
    """The note of an option of the table, without the guide's marks for code."""
    row = _row(name)
    return "" if row is None else row.note.replace("`", "")


def accepted(side: Side) -> tuple[str, ...]:
    """The option names that this side reads or ignores. Ignored ones may stand on either side."""
    return tuple(
        row.name
        for row in CONNECTOR_OPTIONS
        if row.verdict != "refused" and (row.side in (side, "both") or row.verdict == "meaningless")
    )


def _row(name: str) -> ConnectorOption | None:
    lower = name.lower()
    for row in CONNECTOR_OPTIONS:
        if row.name.lower() == lower or (row.prefix is not None and lower.startswith(row.prefix)):
            return row
    return None


def _works(side: Side, *names: str, note: str = "") -> list[ConnectorOption]:
    return [ConnectorOption(name=name, side=side, verdict="works", note=note) for name in names]


def _differs(side: Side, name: str, note: str) -> list[ConnectorOption]:
    return [ConnectorOption(name=name, side=side, verdict="differs", note=note)]


def _meaningless(side: Side, note: str, *names: str) -> list[ConnectorOption]:
    return [
        ConnectorOption(name=name, side=side, verdict="meaningless", note=note) for name in names
    ]


def _refused(side: Side, note: str, *names: str) -> list[ConnectorOption]:
    return [ConnectorOption(name=name, side=side, verdict="refused", note=note) for name in names]


_NO_GROUP: Final = (
    "the source is a member of no consumer group, so there is no session and no rebalance"
)
_FETCHED_WHOLE: Final = "a task fetches its range of offsets in requests of a fixed size"
_BATCHED: Final = "a task sends full record batches and flushes at its end; no record waits"
_RETRIED: Final = (
    "lost connections and retriable errors are retried until `kafka.default.api.timeout.ms`"
    " (source) or `kafka.delivery.timeout.ms` (sink)"
)
_AS_BYTES: Final = (
    "keys and values are bytes (or strings in writes): cast or decode them with DataFrame functions"
)
_PLAINTEXT: Final = "fencelog has neither TLS nor authentication: remove it"

CONNECTOR_OPTIONS: Final[Sequence[ConnectorOption]] = (
    *_works("both", "kafka.bootstrap.servers"),
    *_works("source", "subscribe", "assign"),
    *_differs(
        "source",
        "subscribePattern",
        "Python's regular expressions instead of Java's",
    ),
    *_works(
        "source",
        "startingOffsets",
        "startingTimestamp",
        "startingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy",
    ),
    *_works(
        "source",
        "endingOffsets",
        "endingTimestamp",
        "endingOffsetsByTimestamp",
        note="batch reads only",
    ),
    *_differs(
        "source",
        "failOnDataLoss",
        "gaps of transaction markers, aborted and compacted records are never a loss; with `false`,"
        " a stream goes on at the log start",
    ),
    *_works("source", "maxOffsetsPerTrigger", note="no effect in batch reads"),
    *_differs(
        "source",
        "minOffsetsPerTrigger",
        "no effect with `trigger(availableNow=True)`, which reads everything, and in batch reads",
    ),
    *_differs(
        "source",
        "maxTriggerDelay",
        "counted from the last batch that had records, so an idle query reads its first new records"
        " at once",
    ),
    *_works("source", "minPartitions", "maxRecordsPerPartition"),
    *_works("source", "includeHeaders"),
    *_meaningless(
        "sink", "headers are written if the frame has a column `headers`", "includeHeaders"
    ),
    *_meaningless(
        "source",
        "the source makes no group ids; to show the lag in Kafka's tools, set `groupId`",
        "groupIdPrefix",
    ),
    *_differs(
        "source",
        "kafka.group.id",
        "another name of `groupId`: progress is committed to this group, and read by no one;"
        " two queries with the same group do not share records",
    ),
    *_meaningless(
        "source",
        _RETRIED,
        "kafkaConsumer.pollTimeoutMs",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
    ),
    *_works("sink", "topic"),
    *_works("both", "kafka.client.id", note="default `fencelog-spark`"),
    *_works("both", "kafka.request.timeout.ms"),
    *_differs(
        "source",
        "kafka.default.api.timeout.ms",
        "limits a fetch with all its retries too, in place of `kafkaConsumer.pollTimeoutMs`",
    ),
    *_differs(
        "sink",
        "kafka.delivery.timeout.ms",
        "default 60000 instead of 120000; the time begins again with each record batch that is"
        " acknowledged, and limits the commit too",
    ),
    *_differs(
        "source",
        "kafka.isolation.level",
        "default `read_committed` instead of `read_uncommitted`",
    ),
    *_works("sink", "kafka.compression.type"),
    *_differs(
        "sink",
        "kafka.acks",
        "`all` (or `-1`) only, which is the default: a batch is complete when every record is"
        " acknowledged",
    ),
    *_differs(
        "sink",
        "kafka.enable.idempotence",
        "`true` only: Spark's retries would be duplicates otherwise",
    ),
    *_differs(
        "sink",
        "kafka.transaction.timeout.ms",
        "default 120000; a batch that is being written renews it, so it may take longer (on other"
        " brokers than fencelog it has to be sent within this time); more than the broker's"
        " `transaction.max.timeout.ms` is an error",
    ),
    *_meaningless(
        "sink",
        _BATCHED,
        "kafka.linger.ms",
        "kafka.batch.size",
        "kafka.buffer.memory",
        "kafka.max.block.ms",
        "kafka.max.request.size",
        "kafka.max.in.flight.requests.per.connection",
    ),
    *_meaningless(
        "sink",
        "each codec is used at its default level",
        "kafka.compression.gzip.level",
        "kafka.compression.lz4.level",
        "kafka.compression.zstd.level",
    ),
    *_meaningless(
        "both",
        _RETRIED,
        "kafka.retries",
        "kafka.retry.backoff.ms",
        "kafka.retry.backoff.max.ms",
        "kafka.reconnect.backoff.ms",
        "kafka.reconnect.backoff.max.ms",
        "kafka.socket.connection.setup.timeout.ms",
        "kafka.socket.connection.setup.timeout.max.ms",
    ),
    *_meaningless(
        "both",
        "the client keeps one connection to each broker while its process lives",
        "kafka.connections.max.idle.ms",
        "kafka.metadata.max.age.ms",
        "kafka.client.dns.lookup",
        "kafka.send.buffer.bytes",
        "kafka.receive.buffer.bytes",
    ),
    *_meaningless(
        "source",
        _FETCHED_WHOLE,
        "kafka.fetch.min.bytes",
        "kafka.fetch.max.bytes",
        "kafka.fetch.max.wait.ms",
        "kafka.max.partition.fetch.bytes",
        "kafka.max.poll.records",
        "kafka.client.rack",
    ),
    *_meaningless(
        "source",
        _NO_GROUP,
        "kafka.session.timeout.ms",
        "kafka.heartbeat.interval.ms",
        "kafka.max.poll.interval.ms",
        "kafka.partition.assignment.strategy",
        "kafka.group.instance.id",
        "kafka.auto.commit.interval.ms",
    ),
    *_meaningless(
        "source", "the CRC of every record batch is checked in any case", "kafka.check.crcs"
    ),
    *_meaningless("source", "a read creates no topic", "kafka.allow.auto.create.topics"),
    *_refused(
        "source", "set `startingOffsets`; the checkpoint decides later", "kafka.auto.offset.reset"
    ),
    *_refused(
        "source",
        "Spark's checkpoint holds the progress; for the lag in Kafka's tools, set `groupId`",
        "kafka.enable.auto.commit",
    ),
    *_refused("source", _AS_BYTES, "kafka.key.deserializer", "kafka.value.deserializer"),
    *_refused("sink", _AS_BYTES, "kafka.key.serializer", "kafka.value.serializer"),
    *_refused(
        "both",
        "it names Java classes, and this connector runs none: remove it",
        "kafka.interceptor.classes",
        "kafka.metric.reporters",
    ),
    *_refused(
        "sink",
        "it names a Java class, and this connector runs none. Rows go where Kafka's default"
        " partitioner sends them; for another place, add a column `partition`",
        "kafka.partitioner.class",
    ),
    *_refused(
        "sink",
        "the sink names its transactions itself; the name that outlives restarts is `app`",
        "kafka.transactional.id",
    ),
    *_differs(
        "both",
        "kafka.security.protocol",
        "`PLAINTEXT` only: fencelog has neither TLS nor authentication",
    ),
    *_refused("both", _PLAINTEXT, "kafka.sasl.*", "kafka.ssl.*"),
    *_differs(
        "sink",
        "asyncProgressTrackingEnabled",
        "`false` only: it may repeat a batch under another number, which breaks exactly-once",
    ),
    *_meaningless(
        "sink",
        "progress is never tracked asynchronously",
        "asyncProgressTrackingCheckpointIntervalMs",
    ),
)
"""In the order of the guide: the connector's own options, then Kafka's."""
