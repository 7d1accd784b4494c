"""A oracle with a disk of a few lines: a test writes batches by hand and reads what is said."""

from collections.abc import Iterable

from fencelog.broker.metadata.catalog import GROUP_TOPIC, TRANSACTION_TOPIC, VERSIONED_TOPIC
from fencelog.coordination.group.records import CommittedOffset, write_offset
from fencelog.coordination.shard import LogRecord
from fencelog.coordination.transaction.records import write_transaction
from fencelog.coordination.transaction.state import ProducerIdAndEpoch, Transaction, TxnState
from fencelog.coordination.versioned.records import write_app, write_producer
from fencelog.coordination.versioned.state import NO_VERSION, App, Joined, Phase
from fencelog.log import layout
from fencelog.types import (
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicId,
    TopicPartition,
)
from fencelog.wire.batch import assign, read_header
from fencelog.wire.control import marker_batch
from fencelog.wire.records import RecordToWrite, build_batch
from fencelog_sim.monitors.log_oracle import LogOracles
from fencelog_sim.monitors.observed_log import LogOracle

DATA = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)
TRANSACTIONS = TopicPartition(TRANSACTION_TOPIC, 0)
VERSIONED = TopicPartition(VERSIONED_TOPIC, 0)
GROUPS = TopicPartition(GROUP_TOPIC, 0)
NOW_MS = TimestampMs(1_700_000_000_000)


def data(
    producer_id: int = -1, epoch: int = 0, sequence: int = 0, count: int = 1, *, txn: bool = False
) -> bytearray:
    """A data batch of one producer, or of none."""
    records = [RecordToWrite(None, b"value", NOW_MS)] * count
    if producer_id < 0:
        return build_batch(records)
    return build_batch(
        records,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=txn,
    )


def marker(
    producer_id: int,
    epoch: int = 0,
    *,
    commit: bool = True,
    coordinator: int = 0,
    drop: bool = False,
) -> bytearray:
    """A transaction marker."""
    return marker_batch(
        producer_id,
        epoch,
        commit=commit,
        coordinator_epoch=coordinator,
        timestamp_ms=NOW_MS,
        drops_state=drop,
    )


def records(*written: LogRecord) -> bytearray:
    """One decision of a coordinator."""
    return build_batch([RecordToWrite(each.key, each.value, NOW_MS) for each in written])


def transaction(
    state: TxnState,
    producer_id: int = 7,
    epoch: int = 0,
    partitions: Iterable[TopicPartition] = (),
    name: str = "t",
) -> LogRecord:
    """What a coordinator says of a transactional id."""
    return write_transaction(
        Transaction(
            transactional_id=name,
            producer=ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch)),
            previous=None,
            timeout_ms=1000,
            state=state,
            partitions=frozenset(partitions),
            updated_ms=NOW_MS,
            started_ms=NOW_MS,
        )
    )


def app(
    phase: Phase,
    incarnation: int = 1,
    committing: Iterable[int] = (),
    last_version: int = NO_VERSION,
    fingerprint: bytes = b"",
) -> LogRecord:
    """What a coordinator says of an app."""
    return write_app(
        App(
            app="a",
            query_id="q",
            run_id="r",
            last_version=last_version,
            fingerprint=fingerprint,
            incarnation=incarnation,
            phase=phase,
            version=last_version + 1,
            timeout_ms=1000,
            committing=frozenset(map(ProducerId, committing)),
            written=frozenset(),
            updated_ms=NOW_MS,
            opened_ms=NOW_MS,
        )
    )


def joined(producer_id: int, *partitions: TopicPartition, incarnation: int = 1) -> LogRecord:
    """What a coordinator says of one producer of the app."""
    return write_producer(
        Joined(
            producer_id=ProducerId(producer_id),
            producer_epoch=ProducerEpoch(0),
            app="a",
            incarnation=incarnation,
            partitions=frozenset(partitions),
        )
    )


def committed_offset(offset: int, group: str = "g") -> LogRecord:
    """What a coordinator says of a group."""
    return write_offset(group, DATA, CommittedOffset(Offset(offset)))


class Files:
    """A oracle and the files that it looks at."""

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}
        self.uncommitted: set[TopicPartition] = set()
        """Logs whose high watermark covers nothing."""
        self.is_rebuilt, self.knows_deleted = True, False
        """What a start would say."""
        self.oracle = LogOracles(self._read, self._offsets, lambda: 0)
        self.oracle.serving = True
        self._ends: dict[TopicPartition, int] = {}

    @property
    def said(self) -> str:
        return "\n".join(self.oracle.violations)

    def log(self, name: TopicPartition = DATA) -> LogOracle:
        return self.oracle.logs[str(name)]

    def append(
        self,
        name: TopicPartition,
        *batches: bytearray,
        segment: int = 0,
        offset: int | None = None,
        leader_epoch: int = 0,
        position: int | None = None,
    ) -> None:
        """Append batches in one write, at the log's end by default."""
        end = self._ends.get(name, 0) if offset is None else offset
        for batch in batches:
            assign(memoryview(batch), Offset(end), LeaderEpoch(leader_epoch))
            end = read_header(batch).next_offset
        self._ends[name] = end
        self.write(name, b"".join(batches), segment=segment, position=position)

    def write(
        self, name: TopicPartition, data: bytes, *, segment: int = 0, position: int | None = None
    ) -> None:
        """Append bytes to a file, whatever they are."""
        path = f"{name}/{layout.file_name(segment, layout.LOG)}"
        content = self.files.setdefault(path, bytearray())
        position = len(content) if position is None else position
        content[position:] = data
        self.oracle.wrote(path, position, data)

    def give(self, name: TopicPartition, topic_id: bytes) -> None:
        """Make a partition's directory a topic's."""
        content = layout.encode_partition_metadata(TopicId(topic_id)).encode()
        self.oracle.wrote(f"{name}/{layout.PARTITION_METADATA}.tmp", 0, content)

    def crash(self, name: TopicPartition = DATA, *, promised: int = 0, lost: int = 0) -> None:
        """End the broker; a start finds so many bytes less in the newest file."""
        self.log(name).promised = promised
        self.oracle.crashed()
        path = max(path for path in self.files if path.startswith(f"{name}/"))
        content = self.files[path]
        del content[len(content) - lost :]
        self.oracle.reconcile(self.log(name))
        self._ends[name] = self.log(name).end
        self.oracle.serving = True

    def _read(self, path: str) -> bytes | None:
        content = self.files.get(path)
        return None if content is None else bytes(content)

    def _offsets(self, name: TopicPartition) -> tuple[int, int, bool, bool] | None:
        if name not in self._ends:
            return None
        high_watermark = 0 if name in self.uncommitted else self._ends[name]
        start = self.log(name).log_start
        return start, high_watermark, self.is_rebuilt, self.knows_deleted
