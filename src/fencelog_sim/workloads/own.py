"""Workloads on fencelog's own asyncio client."""

from collections.abc import Mapping, Sequence

from fencelog.client.admin import Admin
from fencelog.client.batches import EncodedBatch
from fencelog.client.cluster import Cluster, ClusterOptions
from fencelog.client.model import Delivery
from fencelog.client.partition_sender import PartitionSender
from fencelog.client.reader import FetchOptions, PartitionReader
from fencelog.client.sender import ProducerOptions, Sender, open_sender
from fencelog.errors import RequestError
from fencelog.types import TopicPartition
from fencelog.wire.batch import HEADER_BYTES, SEQUENCE_MODULUS, Compression
from fencelog.wire.records import Record, RecordToWrite, build_batch, read_records
from fencelog_sim.workload import Stage
from fencelog_sim.workloads.library import CALL_S, POLL_BYTES, Positions, Reader, Rows

ERRORS: tuple[type[Exception], ...] = (RequestError, TimeoutError, ConnectionError)
TRANSACTION_TIMEOUT_MS = 15_000
"""Short enough for some to run out while a fault lasts (E12)."""
WRAP_SHARE = 1 / 8
"""Of the plain producers, those whose sequence numbers soon begin again at 0."""
WRAP_RECORDS_MAX = 30


def options_of(stage: Stage) -> ClusterOptions:
    """Return how a client connects to the stage's cluster: named after the process."""
    return ClusterOptions(
        bootstrap_servers=stage.bootstrap,
        client_id=stage.history.process,
        request_timeout_s=CALL_S,
    )


def open_cluster(stage: Stage) -> Cluster:
    """Return a client of the stage's cluster."""
    return Cluster(options_of(stage))


def encode(partition: TopicPartition, values: Sequence[str], now_s: float) -> EncodedBatch:
    """Return one batch of these values."""
    timestamp_ms = int(now_s * 1000)
    records = [RecordToWrite(None, value.encode(), timestamp_ms) for value in values]
    return encode_records(partition, records)


def encode_records(
    partition: TopicPartition,
    records: Sequence[RecordToWrite],
    compression: Compression = Compression.NONE,
) -> EncodedBatch:
    """Return one batch of these records."""
    return EncodedBatch(
        partition=partition,
        buffer=memoryview(build_batch(records, compression=compression)),
        count=len(records),
        compression=compression,
        base_timestamp=records[0].timestamp_ms,
        max_timestamp=max(record.timestamp_ms for record in records),
    )


async def read_records_once(
    cluster: Cluster, partition: TopicPartition, start: int, end: int
) -> tuple[list[Record], int]:
    """Return what one fetch at read_committed shows of ``start`` ≤ offset, and where to go on.

    ``end`` is known to be readable: DataLossError says that it no longer is.
    """
    options = FetchOptions(isolation="transactional", max_bytes=POLL_BYTES)
    reader = PartitionReader(cluster, partition, start, end, options)
    chunk = await reader.next_chunk()
    if chunk is None:
        return [], start
    # Not by way of the client's own records, which cost more than all the rest of a poll.
    records = [
        record
        for batch in chunk.batches
        for record in read_records(chunk.records[batch.start - HEADER_BYTES : batch.end])
        if record.offset >= start
    ]
    return records, chunk.next_offset


async def read_once(
    cluster: Cluster, partition: TopicPartition, start: int, end: int
) -> tuple[Rows, int]:
    """Return offsets and values, otherwise as ``read_records_once``."""
    records, position = await read_records_once(cluster, partition, start, end)
    return [(each.offset, (each.value or b"").decode()) for each in records], position


class OwnWriter:
    """A ``Sender`` and the sends that it has not acknowledged."""

    def __init__(self, sender: Sender, stage: Stage) -> None:
        """Take an open sender."""
        self._sender = sender
        self._stage = stage
        self._sent: list[tuple[TopicPartition, int]] = []

    async def begin(self) -> None:
        """Begin a transaction."""
        await self._sender.begin()

    async def send(self, partition: TopicPartition, values: Sequence[str]) -> None:
        """Queue one batch."""
        self._sent.append((partition, len(values)))
        await self._sender.enqueue([encode(partition, values, self._stage.now())])

    async def flush(self) -> list[list[int]]:
        """Match acknowledgements, which come in order for each partition, with the sends."""
        deliveries: dict[TopicPartition, list[Delivery]] = {}
        for delivery in await self._sender.flush():
            deliveries.setdefault(delivery.partition, []).append(delivery)
        sent, self._sent = self._sent, []
        offsets = []
        for partition, count in sent:
            delivery = deliveries[partition].pop(0)
            assert delivery.count == count, (delivery, count)
            offsets.append([delivery.base_offset + index for index in range(count)])
        return offsets

    async def commit(self) -> None:
        """Commit what was flushed."""
        await self._sender.end(commit=True)

    async def abort(self) -> None:
        """Abort; a sender that could not even begin has nothing to abort."""
        self._sent = []
        if self._sender.in_transaction:
            await self._sender.end(commit=False)

    async def close(self) -> None:
        """Stop its tasks."""
        await self._sender.close()


class OwnReader:
    """Reads partition by partition, up to the last stable offset of the moment."""

    def __init__(self, cluster: Cluster) -> None:
        """Nothing is assigned."""
        self._cluster = cluster
        self._admin = Admin(cluster)
        self.positions: Positions = {}

    async def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions, from these offsets."""
        self.positions = dict(positions)

    async def end(self, partition: TopicPartition) -> int:
        """Return the last stable offset."""
        return (await self._admin.offsets([partition], "latest", "transactional"))[partition]

    async def poll(self) -> dict[TopicPartition, Rows]:
        """Fetch once from each partition that has something new."""
        positions = dict(self.positions)
        ends = await self._admin.offsets(list(positions), "latest", "transactional")
        found: dict[TopicPartition, Rows] = {}
        for partition, end in ends.items():
            start = positions[partition]
            if start < end:
                rows, positions[partition] = await read_once(self._cluster, partition, start, end)
                if rows:
                    found[partition] = rows
        self.positions = positions
        return found

    def rewind(self, positions: Positions) -> None:
        """Go back."""
        self.positions = dict(positions)


class _LateStart(dict[TopicPartition, PartitionSender]):
    """Lets a producer count from just before the wrap: writing 2^31 records takes too long."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self._first = first

    def __setitem__(self, partition: TopicPartition, sender: PartitionSender) -> None:
        sender._sequence = self._first
        super().__setitem__(partition, sender)


class OwnLibrary:
    """fencelog's client, for one client of a workload."""

    errors = ERRORS
    reader: Reader

    def __init__(self, stage: Stage) -> None:
        """Connect lazily."""
        self._stage = stage
        self._cluster = open_cluster(stage)
        self.reader = OwnReader(self._cluster)

    async def writer(self, transactional_id: str | None) -> OwnWriter:
        """Open a sender."""
        options = ProducerOptions(
            transactional_id=transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        )
        wraps = transactional_id is None and self._stage.random.random() < WRAP_SHARE
        sender = await open_sender(self._cluster, options)
        if wraps:
            # Any sequence may be a producer's first one (E5).
            first = SEQUENCE_MODULUS - self._stage.random.randint(1, WRAP_RECORDS_MAX)
            sender._partitions = _LateStart(first)
        return OwnWriter(sender, self._stage)

    async def close(self) -> None:
        """Close the connections."""
        await self._cluster.close()
