"""Single requests between silences: with each acks and codec, small and large, and unfinished.

Each client does one thing, then nothing for longer than most timeouts. When all faults are healed
``silence`` asks for what must happen by itself.
"""

import asyncio
from dataclasses import dataclass

from fencelog.check.history import Event
from fencelog.client.admin import Admin
from fencelog.client.cluster import Cluster
from fencelog.client.sender import ProducerOptions, open_sender
from fencelog.types import TopicPartition
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.batch import Compression
from fencelog.wire.hot import write_produce_request
from fencelog.wire.records import RecordToWrite
from fencelog_sim.workload import Stage
from fencelog_sim.workloads.lingering import linger
from fencelog_sim.workloads.own import ERRORS, encode_records, open_cluster, read_once
from fencelog_sim.workloads.plans import Send, completed, invoked, named, unknown
from fencelog_sim.workloads.queue import check as check_orders
from fencelog_sim.workloads.settling import (
    RETRY_S,
    come_to_rest,
    insist,
    read_all,
    transactions_end,
)
from fencelog_sim.workloads.silence import Silence
from fencelog_sim.workloads.topics import ensure_topic

NAME = "quiet"
SILENCE_S = (0.3, 2.5)
PADDING = (0, 0, 40, 63, 64, 200, 8_191, 8_192, 40_000)
"""Bytes that a value has beside its name; the largest are more than one fetch of others."""
PRODUCE_VERSION = 9
TIMEOUT_MS = 5_000
ACKS = (-1, -1, 1, 0)
DESERT_SHARE = 0.15
READ_SHARE = 0.3
SEGMENT = {"segment.bytes": "262144"}


@dataclass
class Quiet:
    """The workload; its only topic has segments that hold its largest batches."""

    name: str = NAME
    may_lose: bool = True
    expires: bool = True

    async def prepare(self, stage: Stage) -> None:
        """Create the topic."""
        cluster = open_cluster(stage)
        try:
            await insist(
                stage,
                "topic",
                lambda: ensure_topic(cluster, NAME, stage.scale.partitions, SEGMENT),
            )
        finally:
            await cluster.close()

    async def client(self, stage: Stage, index: int) -> None:
        """Do one thing after the other, with silences between them."""
        cluster = open_cluster(stage)
        try:
            client = _Client(stage, cluster, index)
            while not stage.stopping:
                try:
                    await client.turn()
                except ERRORS:
                    await asyncio.sleep(RETRY_S)
                await asyncio.sleep(stage.random.uniform(*SILENCE_S))
        finally:
            await cluster.close()

    async def settle(self, stage: Stage) -> None:
        """Let all that is open run out, listen to the silence, then read everything."""
        cluster = open_cluster(stage)
        partitions = [TopicPartition(NAME, number) for number in range(stage.scale.partitions)]
        try:
            silence = Silence(stage, cluster, stage.random.choice(partitions))
            await silence.prepare()
            await come_to_rest(stage, cluster, partitions)
            await transactions_end(stage, cluster)
            await silence.check()
            await read_all(stage, cluster, await come_to_rest(stage, cluster, partitions))
        finally:
            await cluster.close()

    def check(self, events: list[Event]) -> list[str]:
        """The history's own checker finds the rest."""
        return check_orders(events)


class _Client:
    """One client: no two of its requests are under way at a time."""

    def __init__(self, stage: Stage, cluster: Cluster, index: int) -> None:
        self._stage = stage
        self._random = stage.random
        self._cluster = cluster
        self._index = index
        self._values = 0

    async def turn(self) -> None:
        """Write, desert a transaction, or read. Raises one of ERRORS."""
        chance = self._random.random()
        if chance < DESERT_SHARE:
            alone = f"{NAME}-{self._stage.history.process}-{self._values}"
            await linger(self._stage, self._cluster, alone, [self._send(), self._send()])
        elif chance < DESERT_SHARE + READ_SHARE:
            await self._read()
        else:
            await self._write(self._random.choice(ACKS), self._random.choice(list(Compression)))

    def _send(self) -> Send:
        number = self._random.randrange(self._stage.scale.partitions)
        self._values += 1
        name = f"{self._stage.history.process}.{self._values}."
        value = name + "." * self._random.choice(PADDING)
        return Send(TopicPartition(NAME, number), [value])

    async def _write(self, acks: int, codec: Compression) -> None:
        """Send one batch; without acks=all nothing is promised."""
        send = self._send()
        now_ms = int(self._stage.now() * 1000)
        records = [RecordToWrite(None, value.encode(), now_ms) for value in send.values]
        batch = encode_records(send.partition, records, codec)
        invocation = self._stage.history.invoke(invoked([send]))
        try:
            if acks >= 0:
                batch.finish(-1, -1, -1, transactional=False)
                await self._send_once(send.partition, batch.buffer, acks)
                invocation.indeterminate(unknown([send]), f"acks={acks}")
                return
            sender = await open_sender(self._cluster, ProducerOptions())
            try:
                await sender.enqueue([batch])
                (delivery,) = await sender.flush()
            finally:
                await sender.close()
        except ERRORS as error:
            invocation.indeterminate(unknown([send]), named(error))
            raise
        offsets = list(range(delivery.base_offset, delivery.base_offset + delivery.count))
        invocation.ok(completed([send], [offsets], []))

    async def _send_once(self, partition: TopicPartition, batch: memoryview, acks: int) -> None:
        """Send a batch that has no producer id, and never again: no broker recognises a repeat.

        Waits for the response, or with acks=0, which has none, as long as it may be on its way.
        """
        other = open_cluster(self._stage)
        try:
            deadline = other.deadline()
            connection = await other.leader(partition, deadline)
            body = write_produce_request(
                PRODUCE_VERSION,
                None,
                acks,
                TIMEOUT_MS,
                [(partition.topic, [(partition[1], batch)])],
            )
            sent = connection.start(ApiKey.PRODUCE, PRODUCE_VERSION, body)
            if acks:
                await connection.answer(sent, deadline)
                return
            await asyncio.sleep(SILENCE_S[0])
            if sent.done():
                sent.exception()
            else:
                sent.cancel()
        finally:
            await other.close()

    async def _read(self) -> None:
        """Read a partition from its beginning, in fetches as large as a poll takes."""
        number = self._random.randrange(self._stage.scale.partitions)
        partition = TopicPartition(NAME, number)
        self._stage.history.reset("seek")
        ends = await self._end(partition)
        position = 0
        while position < ends:
            invocation = self._stage.history.invoke([["poll", {}]])
            rows, position = await read_once(self._cluster, partition, position, ends)
            seen = [list(row) for row in rows]
            key = f"{partition.topic}/{partition.partition}"
            invocation.ok([["poll", {key: seen} if seen else {}]])

    async def _end(self, partition: TopicPartition) -> int:
        found = await Admin(self._cluster).offsets([partition], "latest", "transactional")
        return found[partition]


def quiet() -> Quiet:
    """The workload on fencelog's own client."""
    return Quiet()
