"""Plays schedules before a real broker, many at a time, and checks the history of each."""

import asyncio
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fencelog.check import check
from fencelog.check.history import FINAL, Event, Recorder, key_of
from fencelog.wire import hot
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.batch import iterate
from fencelog.wire.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from fencelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from fencelog.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from tests.proofs._delays_network import Network
from tests.proofs._delays_producer import OPEN, SOURCE, Producer, Slot
from tests.proofs._delays_schedule import PRODUCES_EACH, TRANSACTIONS, Schedule
from tests.support.broker import BrokerProcess
from tests.support.node import visible

SLOTS = 24
TIMEOUT_MS, SHORT_TIMEOUT_MS = 10_000, 1_500
"""Of transactions; short where a schedule has its producer wait for the end of one."""
STUCK_AFTER_TIMEOUT_S = 10.0
"""The longest that readers may wait for a transaction beyond its timeout."""
SCHEDULE_LIMIT_S = 120.0
REPLICATED, COMMITTED = 0, 1
LATEST = -1
POLL_S = 0.02
CONFIG = "auto.create.topics.enable=false\nlog.cleaner.enable=false\n"


@dataclass(kw_only=True)
class Outcome:
    """What one schedule came to."""

    schedule: Schedule
    arrivals: tuple[tuple[str, str], ...] = ()
    """Kind of each held request, and when it arrived."""
    cut_off: int = 0
    """Held requests whose connection ended instead of an answer."""
    problems: list[str] = field(default_factory=list)
    disturbed: list[str] = field(default_factory=list)
    """What its client was refused; no violation, but reported."""
    stuck_s: float = 0.0
    """How long readers of committed data waited at the end."""
    seconds: float = 0.0


class Desk:
    """What the check asks the broker, on a connection on which nothing is held."""

    def __init__(self, network: Network) -> None:
        """Ask on this network's connections."""
        self._network = network

    async def ends(self, topic: str, isolation: int) -> list[int]:
        """LSO or high watermark of the topic's partitions."""
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation,
            topics=[
                ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsPartition(partition_index=index, timestamp=LATEST)
                        for index in range(PRODUCES_EACH)
                    ],
                )
            ],
        )
        answer = await self._network.ask(request, 7, ListOffsetsResponse, is_free=True)
        found = sorted(answer.topics[0].partitions, key=lambda each: each.partition_index)
        assert not any(each.error_code for each in found), found
        return [each.offset for each in found]

    async def read(self, topic: str, partition: int, start: int, end: int) -> list[tuple[int, str]]:
        """What a reader of committed data sees from ``start`` on."""
        shown: list[tuple[int, str]] = []
        while start < end:
            asked = hot.FetchPartition(partition, -1, start, -1, 1 << 20)
            request = hot.FetchRequest(
                -1, 0, 0, 1 << 20, COMMITTED, 0, -1, [hot.FetchTopic(topic, None, [asked])]
            )
            body = hot.write_fetch_request(11, request)
            answer = await self._network.send(ApiKey.FETCH, 11, body, is_free=True)
            fetched = hot.read_fetch_response(answer, 11).topics[0].partitions[0]
            assert not fetched.error, fetched
            headers = [header for records in fetched.records for header, _ in iterate(records)]
            assert headers, f"{topic}-{partition} has nothing to read at {start} of {end}"
            shown += [(offset, value) for offset, value in visible(fetched) if offset >= start]
            start = headers[-1].last_offset + 1
        return shown

    async def open_transactions(self) -> list[str]:
        """Transactional ids whose transaction is not over."""
        request = ListTransactionsRequest(state_filters=list(OPEN[:3]))
        answer = await self._network.ask(request, 1, ListTransactionsResponse, is_free=True)
        return [each.transactional_id for each in answer.transaction_states]


async def play(schedule: Schedule, slot: Slot, arena: "Arena") -> Outcome:
    """Play one schedule to its end and check it."""
    outcome = Outcome(schedule=schedule)
    began = time.monotonic()
    events: list[Event] = []
    is_away = any(hold.reaction == "away" for hold in schedule.holds)
    timeout_ms = SHORT_TIMEOUT_MS if is_away else TIMEOUT_MS
    network = Network(
        address=arena.address, schedule=schedule, restart=lambda: arena.restart(schedule)
    )
    desk = Desk(network)
    producer = Producer(
        network=network,
        slot=slot,
        version=schedule.version,
        name=schedule.name,
        timeout_ms=timeout_ms,
        write=events.append,
        aborts=schedule.aborts,
    )
    inputs = _inputs(slot, events)
    try:
        starts = await desk.ends(slot.topic, REPLICATED)
        async with asyncio.timeout(SCHEDULE_LIMIT_S):
            await producer.run()
            await network.finish()
        await arena.passed(schedule)
        outcome.stuck_s = await _rest(desk, slot, timeout_ms / 1000 + STUCK_AFTER_TIMEOUT_S)
        await _look(desk, slot, producer, starts, inputs, events)
        outcome.problems += [str(each) for each in check(events).problems]
    except (AssertionError, OSError) as error:
        outcome.problems.append(f"{type(error).__name__}: {error}")
    finally:
        await arena.passed(schedule)
        network.close()
    outcome.arrivals = tuple((each.hold.api.name, each.arrived) for each in network.ever)
    outcome.cut_off = sum(each.was_cut_off for each in network.ever)
    outcome.disturbed = producer.disturbed
    outcome.seconds = time.monotonic() - began
    return outcome


async def _rest(desk: Desk, slot: Slot, limit_s: float) -> float:
    """Wait until readers of committed data get to the end; returns how long that took."""
    began = time.monotonic()
    while await desk.ends(slot.topic, COMMITTED) != await desk.ends(slot.topic, REPLICATED):
        waited_s = time.monotonic() - began
        assert waited_s < limit_s, f"the LSO is stuck for {waited_s:.1f} s"
        await asyncio.sleep(POLL_S)
    return time.monotonic() - began


def _inputs(slot: Slot, events: list[Event]) -> dict[str, list[list[object]]]:
    """Say that the inputs are there; returns what a reader of them sees.

    They are numbers and no records: what is made of them is all that the proof is about.
    """
    count = PRODUCES_EACH * TRANSACTIONS // len(slot.sources)
    found: dict[str, list[list[object]]] = {
        key: [[offset, f"input {offset}"] for offset in range(count)] for key in slot.keys.values()
    }
    sends = [(key, value, offset) for key, each in found.items() for offset, value in each]
    recorder = Recorder("inputs", now=time.monotonic, write=events.append)
    sent = recorder.invoke([["send", key, value] for key, value, _ in sends])
    sent.ok([["send", key, value, offset] for key, value, offset in sends])
    return found


async def _look(
    desk: Desk,
    slot: Slot,
    producer: Producer,
    starts: Sequence[int],
    inputs: Mapping[str, list[list[object]]],
    events: list[Event],
) -> None:
    """Write down what a last reader sees, where the log ends, and what the group has committed."""
    final = Recorder(f"{FINAL}-{producer.name}", now=time.monotonic, write=events.append)
    ends = await desk.ends(slot.topic, REPLICATED)
    stable = await desk.ends(slot.topic, COMMITTED)
    polled = final.invoke([["poll"]])
    found = {
        key_of(slot.topic, index): [
            [offset, value]
            for offset, value in await desk.read(slot.topic, index, starts[index], ends[index])
        ]
        for index in range(PRODUCES_EACH)
    }
    polled.ok([["poll", {**inputs, **found}]])
    final.end(
        {
            key_of(slot.topic, index): {
                "log_start": starts[index],
                "last_stable": stable[index],
                "high_watermark": ends[index],
                "log_end": ends[index],
            }
            for index in range(PRODUCES_EACH)
        }
    )
    committed = await producer.positions()
    final.group_end(producer.name, {slot.keys[each]: at for each, at in committed.items()})


class Arena:
    """A broker and the slots before it; a context manager."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """``environment``: of the broker, for a copy of the source with a break in it."""
        self._folder = tempfile.TemporaryDirectory(prefix="fencelog-delays-")
        self._broker = BrokerProcess(
            Path(self._folder.name) / "data", settings=CONFIG, environment=environment or {}
        )
        self._slots = [Slot(topic=f"delays-{n}", sources=(2 * n, 2 * n + 1)) for n in range(SLOTS)]
        self._expected: set[int] = set()
        self._has_restarted = asyncio.Event()

    @property
    def address(self) -> tuple[str, int]:
        """Where the broker listens."""
        return self._broker.host, self._broker.port

    async def __aenter__(self) -> "Arena":
        """Start it and make the topics."""
        await asyncio.to_thread(self._broker.start)
        topics = [(slot.topic, PRODUCES_EACH) for slot in self._slots] + [(SOURCE, 2 * SLOTS)]
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(name=name, num_partitions=count, replication_factor=1)
                for name, count in topics
            ]
        )
        network = self._network()
        answer = await network.ask(request, 7, CreateTopicsResponse, is_free=True)
        assert not any(each.error_code for each in answer.topics), answer
        network.close()
        return self

    async def __aexit__(self, *_why: object) -> None:
        """Kill it."""
        await asyncio.to_thread(self._broker.kill)
        self._folder.cleanup()

    async def wave(self, schedules: Iterable[Schedule]) -> list[Outcome]:
        """Play these, as many at a time as there are slots."""
        waiting = list(schedules)
        outcomes: list[Outcome] = []
        self._expected = {each.number for each in waiting if each.restarts}
        assert not self._expected or len(waiting) <= SLOTS, "all of a restart's must be under way"
        self._has_restarted.clear()

        async def work(slot: Slot) -> None:
            while waiting:
                outcomes.append(await play(waiting.pop(), slot, self))

        async with asyncio.TaskGroup() as tasks:
            for slot in self._slots:
                tasks.create_task(work(slot))
        return outcomes

    async def left_open(self) -> list[str]:
        """What is still open when its timeout is over; waits for that."""
        network = self._network()
        desk = Desk(network)
        deadline = time.monotonic() + TIMEOUT_MS / 1000 + STUCK_AFTER_TIMEOUT_S
        while True:
            left = await desk.open_transactions()
            if not left or time.monotonic() > deadline:
                break
            await asyncio.sleep(POLL_S)
        network.close()
        return left

    async def restart(self, schedule: Schedule) -> None:
        """Called by each schedule of a wave that comes to the restart; returns after it."""
        await self.passed(schedule)
        await self._has_restarted.wait()

    async def passed(self, schedule: Schedule) -> None:
        """This schedule has come to the restart, or will not come to it; the last one makes it."""
        if schedule.number in self._expected:
            self._expected.remove(schedule.number)
            if not self._expected:
                await asyncio.to_thread(self._broker.restart)
                self._has_restarted.set()

    def _network(self) -> Network:
        nobody = Schedule(number=-1, version=1, holds=(), lines="one", aborts=(), restarts=False)
        return Network(address=self.address, schedule=nobody, restart=lambda: self.restart(nobody))
