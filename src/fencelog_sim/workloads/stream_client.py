"""One writer and reader of a stream: what it does, one thing after the other."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fencelog.client.admin import Admin
from fencelog.client.asynchronous import Client, Producer
from fencelog.client.model import Joined
from fencelog.client.sender import ProducerOptions, open_sender
from fencelog.client.versioned_transactions import Transactions
from fencelog.errors import RequestError
from fencelog.types import TopicPartition
from fencelog.wire.records import Record
from fencelog_sim.workload import Stage
from fencelog_sim.workloads.own import (
    ERRORS,
    TRANSACTION_TIMEOUT_MS,
    options_of,
    read_records_once,
)

NAME = "streams"
KEYS = 12
UNKEYED_SHARE = 0.1
POLL_SHARE = 0.2
VERSIONED_SHARE = 0.1
TRANSACTION_SHARE = 0.4
ABORT_SHARE = 0.2
BATCH_BYTES = (1, 1, 200, 1 << 20)
"""One record a batch, some, and all of a write."""
FLUSH_SHARE = 0.3
VERSION_TIMEOUT_MS = 10_000
Pair = tuple[str | None, str]


def identifier(index: int, hand: int) -> str:
    """The transactional id of a client's hand."""
    return f"{NAME}-{index}-{hand}"


def rows_of(records: Iterable[Record]) -> list[list[object]]:
    """Records as a history has them: offset, key or None, value."""
    return [
        [each.offset, None if each.key is None else each.key.decode(), (each.value or b"").decode()]
        for each in records
    ]


class _Writer(NamedTuple):
    """A producer, and its name in the history."""

    producer: Producer
    label: str


class StreamClient:
    """A hand of client ``index``, which acts beside its others, with connections of its own."""

    def __init__(self, stage: Stage, index: int, hand: int) -> None:
        """Connect lazily."""
        self._stage = stage
        self._random = stage.random
        self._transactional_id = identifier(index, hand)
        self._process = f"{stage.history.process}.{hand}"
        self._client = Client(options_of(stage))
        self._cluster = self._client.cluster
        self._writers: dict[bool, _Writer] = {}
        self._positions: dict[int, int] = {}
        self._values = self._numbers = self._labels = 0

    async def turn(self) -> None:
        """Do one thing. Raises one of ERRORS."""
        chance = self._random.random()
        if chance < POLL_SHARE:
            await self._poll()
        elif chance < POLL_SHARE + VERSIONED_SHARE:
            await self._write_version()
        else:
            await self._write(transactional=self._random.random() < TRANSACTION_SHARE)

    def cut(self) -> None:
        """Close the connections, whatever is under way; the next request opens new ones."""
        self._cluster.disconnect("cut")

    async def close(self) -> None:
        """Close the producers and the connections."""
        for writer in self._writers.values():
            await writer.producer.close()
        await self._client.close()

    # --- writes

    def _pairs(self) -> list[Pair]:
        pairs: list[Pair] = []
        for _ in range(self._random.randint(1, 2 * self._stage.scale.records_per_send)):
            self._values += 1
            key = f"k{self._random.randrange(KEYS)}"
            is_keyed = self._random.random() >= UNKEYED_SHARE
            pairs.append((key if is_keyed else None, f"{self._process}.{self._values}"))
        return pairs

    async def _writer(self, *, transactional: bool) -> _Writer:
        """Return the producer of this kind, a new one after a failure."""
        writer = self._writers.get(transactional)
        if writer is None:
            options = ProducerOptions(
                transactional_id=self._transactional_id if transactional else None,
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            )
            writer = self._writers[transactional] = await self._open(options)
        return writer

    async def _open(self, options: ProducerOptions) -> _Writer:
        sender = await open_sender(self._cluster, options)
        self._labels += 1
        batch_bytes = self._random.choice(BATCH_BYTES)
        return _Writer(
            Producer(self._cluster, sender, batch_bytes), f"{self._process}/{self._labels}"
        )

    async def _retire(self, writer: _Writer) -> None:
        self._writers = {kind: each for kind, each in self._writers.items() if each is not writer}
        await writer.producer.close()

    async def _write(self, *, transactional: bool) -> None:
        writer, pairs = await self._writer(transactional=transactional), self._pairs()
        number = self._begin(writer, pairs)
        outcome, placed = await self._attempt(writer, pairs, transactional=transactional)
        self._end(number, outcome, placed)

    def _begin(self, writer: _Writer, pairs: Sequence[Pair]) -> str:
        """Note what is written; return the name of this write."""
        self._numbers += 1
        number = f"{self._process}.{self._numbers}"
        self._stage.history.note(
            what="write",
            number=number,
            producer=writer.label,
            records=[list(pair) for pair in pairs],
        )
        return number

    def _end(self, number: str, outcome: str, placed: list[list[int]]) -> None:
        self._stage.history.note(what="wrote", number=number, outcome=outcome, placed=placed)

    def _refused(self, error: Exception) -> None:
        """Note why a write has failed: the check knows what no fault explains."""
        code = error.code.name if isinstance(error, RequestError) else ""
        self._stage.history.note(what="refused", code=code, error=str(error))

    async def _attempt(
        self, writer: _Writer, pairs: Sequence[Pair], *, transactional: bool
    ) -> tuple[str, list[list[int]]]:
        """Try to write; how that ended, and where the records are: segment, offset, count."""
        producer, is_committing = writer.producer, not transactional
        try:
            if transactional:
                await producer.begin()
            placed = await self._send(producer, pairs)
            if transactional:
                if self._random.random() < ABORT_SHARE:
                    await producer.abort()
                    return "failed", []
                is_committing = True
                await producer.commit()
        except ERRORS as error:
            self._refused(error)
            if is_committing:
                await self._retire(writer)
                return "indeterminate", []
            try:
                await producer.abort()
            except ERRORS:
                await self._retire(writer)
            return "failed", []
        return "ok", placed

    async def _send(self, producer: Producer, pairs: Sequence[Pair]) -> list[list[int]]:
        """Write records in this order, and wait until all are stored."""
        deliveries = []
        for key, value in pairs:
            await producer.send(
                NAME,
                value.encode(),
                key=None if key is None else key.encode(),
                timestamp_ms=int(self._stage.now() * 1000),
            )
            if self._random.random() < FLUSH_SHARE:
                deliveries += await producer.flush()
        deliveries += await producer.flush()
        return [[each.partition.partition, each.base_offset, each.count] for each in deliveries]

    # --- versioned transactions

    async def _write_version(self) -> None:
        """Write the next version by two attempts, of which the commit names one."""
        transactions, app, run = Transactions(self._cluster), self._transactional_id, self._process
        version = (await transactions.describe(app)).last_version + 1
        # What an earlier try of this version left open can not be committed after this.
        await transactions.abort(app, app, run, version)
        joined: list[Joined] = []
        for _ in range(2):
            found = await transactions.join(
                app, app, run, version, VERSION_TIMEOUT_MS, takeover=False
            )
            if not isinstance(found, Joined):
                return  # an earlier commit was faster
            joined.append(found)
        named, other = [await self._open(ProducerOptions(joined=each)) for each in joined]
        try:
            pairs, lost = self._pairs(), self._pairs()
            number, lost_number = self._begin(named, pairs), self._begin(other, lost)
            outcome, placed = "failed", []
            try:
                await self._send(other.producer, lost)
                placed = await self._send(named.producer, pairs)
                outcome = "indeterminate"
                fingerprint = number.encode()
                ids = [joined[0].producer_id]
                await transactions.commit(app, app, run, version, fingerprint, ids, takeover=False)
                outcome = "ok"
            except ERRORS as error:
                self._refused(error)
            self._end(number, outcome, placed)
            self._end(lost_number, "failed", [])
        finally:
            await named.producer.close()
            await other.producer.close()

    # --- reads

    async def _poll(self) -> None:
        """Read on in one segment, up to the last stable offset."""
        stream = await self._client.describe_stream(NAME)
        index = self._random.choice(stream.segments).index
        partition, start = TopicPartition(NAME, index), self._positions.get(index, 0)
        admin = Admin(self._cluster)
        end = (await admin.offsets([partition], "latest", "transactional"))[partition]
        if start >= end:
            self._positions[index] = 0
            return
        records, position = await read_records_once(self._cluster, partition, start, end)
        self._positions[index] = position
        self._stage.history.note(
            what="read", segment=index, start=start, end=position, rows=rows_of(records)
        )
