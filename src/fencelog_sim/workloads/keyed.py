"""Tables: few keys written again and again, tombstones, on topics that forget.

One topic is compacted, one is compacted and deletes, one only deletes; segments are small, and old
records are deleted by request, too. The history checker cannot check deleted records, so the
events are this workload's own, and so is the check (``keyed_claims``).
"""

import asyncio
from collections.abc import Mapping

from fencelog.check.history import Event
from fencelog.client.admin import Admin
from fencelog.client.cluster import Cluster
from fencelog.client.model import DataLossError
from fencelog.client.sender import ProducerOptions, Sender, open_sender
from fencelog.client.topic_changes import TopicChanges
from fencelog.errors import ErrorCode, RequestError
from fencelog.types import TopicPartition
from fencelog.wire.records import Headers, RecordToWrite
from fencelog_sim.workload import Stage
from fencelog_sim.workloads.keyed_claims import Row, Table, claims
from fencelog_sim.workloads.own import (
    ERRORS,
    TRANSACTION_TIMEOUT_MS,
    encode_records,
    open_cluster,
    read_records_once,
)
from fencelog_sim.workloads.settling import RETRY_S, come_to_rest, end_transactions, insist

NAME = "keyed"
COMPACTED, BOTH, DELETED = f"{NAME}-compact", f"{NAME}-both", f"{NAME}-delete"
POLICIES = {COMPACTED: "compact", BOTH: "compact,delete", DELETED: "delete"}
KEYS = 8
TOMBSTONE_SHARE = 0.2
TRANSACTION_SHARE = 0.5
ABORT_SHARE = 0.15
POLL_SHARE = 0.3
DELETE_SHARE = 0.06
BATCHES_MAX = 3
BROKERS_DEFAULT = -1
TIMES_MS = 1_000_000
DELTAS_MS = (-8_193, -65, -64, 0, 1, 63, 64, 8_191, 8_192)
"""Between the records of a batch: around the edges of varints."""
HEADERS_SHARE = 0.3
REFUSED: tuple[type[Exception], ...] = (DataLossError, *ERRORS)


class Keyed:
    """The workload; client ``index`` writes transactions as ``keyed-index``."""

    name = NAME
    may_lose = expires = False

    async def prepare(self, stage: Stage) -> None:
        """Create the topics."""
        cluster = open_cluster(stage)
        retention_ms = stage.random.choice(("-1", "1500"))
        common = {
            "segment.bytes": str(1024 * max(1, stage.scale.records_per_send // 4)),
            "min.cleanable.dirty.ratio": stage.random.choice(("0.01", "0.5")),
            "delete.retention.ms": stage.random.choice(("0", "500", "86400000")),
            "retention.bytes": stage.random.choice(("-1", "3000")),
            "retention.ms": retention_ms,
        }
        # What retention deletes by age is as old as the broker's clock says: the clients' times are
        # no calendar.
        time = dict.fromkeys(POLICIES, "LogAppendTime")
        time[COMPACTED] = stage.random.choice(("CreateTime", "LogAppendTime"))
        try:
            for topic, policy in POLICIES.items():
                await insist(
                    stage,
                    f"topic {topic}",
                    lambda topic=topic, policy=policy: _ensure(  # type: ignore[misc]
                        cluster,
                        topic,
                        stage.scale.partitions,
                        {**common, "cleanup.policy": policy, "message.timestamp.type": time[topic]},
                    ),
                )
        finally:
            await cluster.close()

    async def client(self, stage: Stage, index: int) -> None:
        """Write, read and delete until the stage stops."""
        cluster = open_cluster(stage)
        writer = _Client(stage, cluster, _identifier(index))
        try:
            while not stage.stopping:
                try:
                    await writer.turn()
                except REFUSED:
                    await asyncio.sleep(RETRY_S)
                await stage.pause()
        finally:
            await writer.close()
            await cluster.close()

    async def settle(self, stage: Stage) -> None:
        """Fence all clients and read what is left."""
        cluster = open_cluster(stage)
        partitions = [
            TopicPartition(topic, number)
            for topic in POLICIES
            for number in range(stage.scale.partitions)
        ]
        try:
            await end_transactions(
                stage, cluster, [_identifier(index) for index in range(stage.scale.clients)]
            )
            ends = await come_to_rest(stage, cluster, partitions)
            for each, end in ends.items():
                await insist(
                    stage,
                    f"final read of {each}",
                    lambda each=each, end=end: _read_all(  # type: ignore[misc]
                        stage, cluster, each, end["last_stable"]
                    ),
                )
        finally:
            await cluster.close()

    def check(self, events: list[Event]) -> list[str]:
        """What is missing and was not superseded, what is there and should not be."""
        return claims(
            events, {topic: Table("compact" in policy) for topic, policy in POLICIES.items()}
        )


class _Client:
    """One client's producers, positions and names."""

    def __init__(self, stage: Stage, cluster: Cluster, transactional_id: str) -> None:
        self._stage = stage
        self._random = stage.random
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._senders: dict[bool, Sender] = {}
        self._positions: dict[TopicPartition, int] = {}
        self._values = 0

    async def turn(self) -> None:
        """Do one thing. Raises one of ERRORS, or DataLossError."""
        chance = self._random.random()
        if chance < POLL_SHARE:
            await self._poll(self._partition())
        elif chance < POLL_SHARE + DELETE_SHARE:
            await self._delete()
        else:
            await self._write(transactional=self._random.random() < TRANSACTION_SHARE)

    async def close(self) -> None:
        """Close the producers."""
        for sender in self._senders.values():
            await sender.close()

    def _partition(self) -> TopicPartition:
        topic = self._random.choice(list(POLICIES))
        return TopicPartition(topic, self._random.randrange(self._stage.scale.partitions))

    def _pairs(self) -> list[tuple[str, str | None]]:
        pairs: list[tuple[str, str | None]] = []
        for _ in range(self._random.randint(1, self._stage.scale.records_per_send)):
            self._values += 1
            key = f"k{self._random.randrange(KEYS)}"
            is_tombstone = self._random.random() < TOMBSTONE_SHARE
            value = None if is_tombstone else f"{self._stage.history.process}.{self._values}"
            pairs.append((key, value))
        return pairs

    async def _write(self, *, transactional: bool) -> None:
        batches = {
            self._partition(): self._pairs() for _ in range(self._random.randint(1, BATCHES_MAX))
        }
        sender = self._senders.get(transactional)
        if sender is None:
            sender = self._senders[transactional] = await open_sender(
                self._cluster,
                ProducerOptions(
                    transactional_id=self._transactional_id if transactional else None,
                    transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                ),
            )
        self._values += 1
        number = self._values
        self._note("write", number=number, batches=_listed(batches))
        outcome, offsets = await self._attempt(sender, batches, transactional=transactional)
        self._note("wrote", number=number, outcome=outcome, offsets=offsets)

    async def _attempt(
        self,
        sender: Sender,
        batches: Mapping[TopicPartition, list[tuple[str, str | None]]],
        *,
        transactional: bool,
    ) -> tuple[str, dict[str, int]]:
        """Try to write; how that ended, and where each partition's records are."""
        is_committing = not transactional
        try:
            if transactional:
                await sender.begin()
            for partition, pairs in batches.items():
                records = [self._record(key, value) for key, value in pairs]
                await sender.enqueue([encode_records(partition, records)])
            found = {str(each.partition): each.base_offset for each in await sender.flush()}
            if transactional:
                if self._random.random() < ABORT_SHARE:
                    await sender.end(commit=False)
                    return "failed", {}
                is_committing = True
                await sender.end(commit=True)
        except ERRORS:
            if is_committing:
                await self._retire(sender)
                return "indeterminate", {}
            try:
                await sender.end(commit=False)
            except ERRORS:
                await self._retire(sender)
            return "failed", {}
        return "ok", found

    def _record(self, key: str, value: str | None) -> RecordToWrite:
        """A record with a timestamp before or after its neighbours', and perhaps with headers."""
        timestamp_ms = TIMES_MS + int(self._stage.now() * 1000) + self._random.choice(DELTAS_MS)
        headers: Headers = ()
        if self._random.random() < HEADERS_SHARE:
            headers = (("client", self._stage.history.process.encode()), ("none", None))
        encoded = None if value is None else value.encode()
        return RecordToWrite(key.encode(), encoded, timestamp_ms, headers)

    async def _retire(self, sender: Sender) -> None:
        self._senders = {kind: each for kind, each in self._senders.items() if each is not sender}
        await sender.close()

    async def _poll(self, partition: TopicPartition) -> None:
        """Read on, or from the beginning where what comes next is gone."""
        admin = Admin(self._cluster)
        start = self._positions.get(partition, 0)
        end = (await admin.offsets([partition], "latest", "transactional"))[partition]
        if start >= end:
            self._positions[partition] = 0
            return
        try:
            records, position = await read_records_once(self._cluster, partition, start, end)
        except (DataLossError, RequestError) as error:
            if isinstance(error, RequestError) and error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            earliest = await admin.offsets([partition], "earliest", "replicated")
            self._positions[partition] = earliest[partition]
            return
        self._positions[partition] = position
        rows = [_row(each.offset, each.key, each.value) for each in records]
        self._note("read", partition=str(partition), rows=rows)

    async def _delete(self) -> None:
        """Delete what one partition has below an offset that was read."""
        topic = self._random.choice((BOTH, DELETED))
        known = [each for each in self._positions if each.topic == topic]
        if known:
            partition = self._random.choice(known)
            offset = self._random.randint(0, self._positions[partition])
            begin = await TopicChanges(self._cluster).delete_records({partition: offset})
            self._note("deleted", partition=str(partition), begin=begin[partition])

    def _note(self, what: str, **fields: object) -> None:
        self._stage.history.note(what=what, **fields)


def _identifier(index: int) -> str:
    return f"{NAME}-{index}"


def _listed(
    batches: Mapping[TopicPartition, list[tuple[str, str | None]]],
) -> dict[str, list[list[str | None]]]:
    return {str(each): [list(pair) for pair in pairs] for each, pairs in batches.items()}


def _row(offset: int, key: bytes | None, value: bytes | None) -> Row:
    return [offset, (key or b"").decode(), None if value is None else value.decode()]


async def _ensure(
    cluster: Cluster, topic: str, partitions: int, configs: Mapping[str, str]
) -> None:
    try:
        await Admin(cluster).create_topic(topic, partitions, configs, BROKERS_DEFAULT)
    except RequestError as error:
        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise


async def _read_all(stage: Stage, cluster: Cluster, partition: TopicPartition, end: int) -> None:
    """Record all that is left of a partition, and from where on nothing may be missing."""
    admin = Admin(cluster)
    position = (await admin.offsets([partition], "earliest", "replicated"))[partition]
    rows: list[Row] = []
    while position < end:
        try:
            records, position = await read_records_once(cluster, partition, position, end)
        except DataLossError as error:
            raise TimeoutError(str(error)) from error  # retention goes on meanwhile
        rows += [_row(each.offset, each.key, each.value) for each in records]
    start = (await admin.offsets([partition], "earliest", "replicated"))[partition]
    stage.history.note(what="left", partition=str(partition), rows=rows, start=start, end=end)


def keyed() -> Keyed:
    """The workload on fencelog's own client."""
    return Keyed()
