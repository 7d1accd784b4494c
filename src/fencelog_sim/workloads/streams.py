"""Streams: keys written and read while their segments split and merge, by hand and by policy.

Each client writes plainly, in Kafka transactions and in versioned ones, reads segments, and begins
resizes at any moment, also of segments that another client is resizing. Records carry what is
needed to find them again, so the check (``stream_history``) reads the segments in the stream's
order and compares them with what was acknowledged.
"""

import asyncio

from fencelog.check.history import Event
from fencelog.client.asynchronous import Client
from fencelog.client.cluster import Cluster
from fencelog.client.streams.model import StreamDescription
from fencelog.coordination.streams.model import SegmentState
from fencelog.errors import ErrorCode, RequestError
from fencelog.types import TopicPartition
from fencelog_sim.faults import Points
from fencelog_sim.workload import Stage
from fencelog_sim.workloads.own import ERRORS, open_cluster, options_of, read_records_once
from fencelog_sim.workloads.settling import RETRY_S, come_to_rest, end_transactions, insist
from fencelog_sim.workloads.stream_client import NAME, StreamClient, identifier, rows_of
from fencelog_sim.workloads.stream_history import problems_of
from fencelog_sim.workloads.stream_resizer import keep_resizing

SEGMENTS_MAX = 3
HANDS = 2
"""Writers of one client, each with a transactional id."""
POLICIES = (None, None, "2", "20")
"""Events per second and segment above which a segment is split, or none."""
COOL_DOWN_MS = ("200", "2000")
NO_RETENTION = {"retention.ms": "-1", "retention.bytes": "-1"}
POINTS: Points = (
    ("put topic/*", 8),
    ("commit topic/*", 8),
    ("mkdir streams-*", 6),
    ("append streams-*.log", 30),
    ("sync streams-*.log", 30),
    ("request ResizeStream", 3),
    ("answer ResizeStream", 3),
)
"""The steps of a resize, at which a fault may come, and up to which match it may wait for."""
UNFINISHED = frozenset({SegmentState.OPENING, SegmentState.SEALING})


class Streams:
    """The workload; hand ``hand`` of client ``index`` writes as ``streams-index-hand``."""

    name = NAME
    may_lose = expires = False

    async def prepare(self, stage: Stage) -> None:
        """Create the stream."""
        segments = stage.random.randint(1, SEGMENTS_MAX)
        settings = dict(NO_RETENTION)
        rate = stage.random.choice(POLICIES)
        if rate is not None:
            settings["stream.rate.events.per.segment"] = rate
            settings["stream.cooldown.ms"] = stage.random.choice(COOL_DOWN_MS)
        async with Client(options_of(stage)) as client:

            async def ensure() -> None:
                try:
                    await client.create_stream(NAME, segments, settings)
                except RequestError as error:
                    if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                        raise

            await insist(stage, f"stream {NAME}", ensure)

    async def client(self, stage: Stage, index: int) -> None:
        """Write, read and resize until the stage stops."""
        hands = [StreamClient(stage, index, hand) for hand in range(HANDS)]

        def cut() -> None:
            for each in hands:
                each.cut()

        async with asyncio.TaskGroup() as tasks:
            for each in hands:
                tasks.create_task(act(stage, each))
            tasks.create_task(keep_resizing(stage, cut))

    async def settle(self, stage: Stage) -> None:
        """Read the stream once all is decided."""
        await self.read_stream(stage)

    async def read_stream(self, stage: Stage) -> int:
        """Fence all writers, wait for the end of all resizes, and return how many records it has.

        Raises TimeoutError, saying what hangs.
        """
        cluster = open_cluster(stage)
        try:
            await end_transactions(
                stage,
                cluster,
                [
                    identifier(index, hand)
                    for index in range(stage.scale.clients)
                    for hand in range(HANDS)
                ],
            )
            async with Client(options_of(stage)) as client:
                stream = await _resized(stage, client)
            return await _read_all(stage, cluster, stream)
        finally:
            await cluster.close()

    def check(self, events: list[Event]) -> list[str]:
        """What is lost, doubled, disordered or in the wrong segment."""
        return problems_of(events)


async def act(stage: Stage, client: StreamClient) -> None:
    """Do one thing after the other until the stage stops."""
    try:
        while not stage.stopping:
            try:
                await client.turn()
            except ERRORS:
                await asyncio.sleep(RETRY_S)
            await stage.pause()
    finally:
        await client.close()


async def _resized(stage: Stage, client: Client) -> StreamDescription:
    """Return the stream once nothing of a resize is left to do.

    Raises TimeoutError naming the segments that wait: a resize needs nobody to go on with it.
    """

    async def finished() -> StreamDescription:
        stream = await client.describe_stream(NAME)
        waiting = [
            f"{each.index} {each.state.value}"
            for each in stream.segments
            if each.state in UNFINISHED
        ]
        if waiting:
            raise TimeoutError(f"resizes go on: {', '.join(waiting)}")
        return stream

    return await insist(stage, "end of all resizes", finished)


async def _read_all(stage: Stage, cluster: Cluster, stream: StreamDescription) -> int:
    """Record every segment with all that it has; return how many records these are."""
    count = 0
    partitions = [TopicPartition(NAME, each.index) for each in stream.segments]
    ends = await come_to_rest(stage, cluster, partitions)
    for partition, segment in zip(partitions, stream.segments, strict=True):
        end = ends[partition]
        rows: list[list[object]] = []
        position = end["log_start"]
        while position < end["last_stable"]:
            records, position = await insist(
                stage,
                f"final read of {partition} at {position}",
                lambda partition=partition, position=position, end=end: read_records_once(  # type: ignore[misc]
                    cluster, partition, position, end["last_stable"]
                ),
            )
            rows += rows_of(records)
        count += len(rows)
        stage.history.note(
            what="segment",
            index=segment.index,
            low=segment.low,
            high=segment.high,
            state=segment.state.value,
            predecessors=list(segment.predecessors),
            end=segment.end,
            rows=rows,
        )
    return count


def streams() -> Streams:
    """The workload on fencelog's own client."""
    return Streams()
