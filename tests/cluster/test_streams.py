"""Streams on three brokers in one process, killed at each step of a resize (R1, R2)."""

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from fencelog.broker.coordinators import stream_policy, stream_sealer
from fencelog.broker.metadata.streams import Streams
from fencelog.broker.partitions.partition import Partition
from fencelog.coordination.streams.model import HASH_SPACE
from fencelog.errors import ErrorCode
from fencelog.log.values import Rejected
from fencelog.testing.cluster import LocalCluster
from tests.cluster.test_replication import digest
from tests.support.node import Peer
from tests.support.streams import create_stream, resize, segments_of, states_of
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
]
DEADLINE_S = 40.0
ALL = (1, 2, 3)
T = TypeVar("T")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    """Three brokers; at the end all replicas of each segment have the same bytes."""
    monkeypatch.setattr(stream_sealer, "RETRY_S", 0.05)
    with LocalCluster(tmp_path) as running:
        yield running
        running.heal()
        running.start()
        for index in range(len(ask(running, segments_of))):
            wait_until(
                lambda index=index: running.isr("s", index) == ALL,  # type: ignore[misc]
                deadline_s=DEADLINE_S,
                what=f"all replicas of s-{index} in sync",
            )
            name = f"s-{index}"
            wait_until(
                lambda name=name: len({digest(running, each, name) for each in ALL}) == 1,  # type: ignore[misc]
                deadline_s=DEADLINE_S,
                what=f"equal bytes of all replicas of {name}",
            )
    gc.collect()  # a leak shows in the test that made it


def ask(cluster: LocalCluster, what: Callable[..., Awaitable[T]], *args: Any, **how: Any) -> T:
    """Ask a broker that runs, over a connection of its own."""

    async def run() -> T:
        async with Peer.at("127.0.0.1", cluster._port(min(cluster._nodes))) as peer:
            return await what(peer, *args, **how)

    return asyncio.run(run())


def wait_for_states(cluster: LocalCluster, *states: str) -> None:
    wait_until(
        lambda: ask(cluster, states_of) == list(states),
        deadline_s=DEADLINE_S,
        what=f"segments are {states}",
    )


def assert_covering(cluster: LocalCluster) -> None:
    covering = [each for each in ask(cluster, segments_of) if each.state in ("open", "sealing")]
    assert sum(each.high - each.low for each in covering) == HASH_SPACE


def test_a_resize_is_carried_out_by_the_leaders_wherever_they_are(cluster: LocalCluster) -> None:
    assert ask(cluster, create_stream, segments=3) == (ErrorCode.NONE, None)
    assert {cluster.leader("s", index) for index in range(3)} == set(ALL)
    merged = ask(cluster, resize, [0, 1, 2])
    assert (merged.error_code, merged.successors) == (0, [3])
    split = ask(cluster, resize, [3])
    assert (split.error_code, split.successors) == (0, [4, 5])
    assert ask(cluster, states_of) == ["sealed"] * 4 + ["open"] * 2
    assert_covering(cluster)


STEPS = [(Streams, "open_successors"), (Partition, "seal"), (Streams, "segment_sealed")]


@pytest.mark.parametrize(("owner", "step"), STEPS, ids=[name for _, name in STEPS])
def test_the_next_leader_goes_on_where_a_killed_one_was(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, owner: type, step: str
) -> None:  # R2
    ask(cluster, create_stream)
    leader, reached = cluster.leader("s"), threading.Event()
    step_itself = getattr(owner, step)
    thread: list[int] = []

    def is_held() -> bool:
        """Whether it is the first leader's loop that asks."""
        reached.set()
        thread.append(threading.get_ident())
        return thread[0] == thread[-1]

    async def held(*args: Any, **how: Any) -> Any:
        if is_held():
            await asyncio.get_running_loop().create_future()
        return await step_itself(*args, **how)

    def rejected(*args: Any, **how: Any) -> Any:
        if is_held():
            return Rejected(ErrorCode.KAFKA_STORAGE_ERROR, "a stand-in")
        return step_itself(*args, **how)

    monkeypatch.setattr(owner, step, rejected if step == "seal" else held)
    answer = ask(cluster, resize, [0], timeout_ms=0)
    assert answer.successors == [1, 2]
    assert reached.wait(DEADLINE_S)
    cluster.kill(leader)
    wait_for_states(cluster, "sealed", "open", "open")
    assert_covering(cluster)


def test_a_seal_that_was_not_committed_is_made_by_the_next_leader(cluster: LocalCluster) -> None:
    # R2
    ask(cluster, create_stream)
    leader = cluster.leader("s")
    for other in set(ALL) - {leader}:
        cluster.cut(leader, other)
    ask(cluster, resize, [0], timeout_ms=0)
    cluster.kill(leader)
    cluster.heal()
    wait_for_states(cluster, "sealed", "open", "open")
    cluster.start(leader)
    assert_covering(cluster)


def test_a_resize_needs_no_controller(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(cluster, create_stream, segments=3)
    controller, go_on = cluster.controller, threading.Event()
    record = Streams.segment_sealed

    async def later(*args: Any) -> None:
        await asyncio.to_thread(go_on.wait)
        await record(*args)

    monkeypatch.setattr(Streams, "segment_sealed", later)
    ask(cluster, resize, [0, 1, 2], timeout_ms=0)
    cluster.kill(controller)
    go_on.set()
    wait_for_states(cluster, "sealed", "sealed", "sealed", "open")


def test_of_resizes_of_one_segment_that_two_brokers_take_one_is_in_progress(
    cluster: LocalCluster,
) -> None:
    ask(cluster, create_stream, segments=2)

    async def both() -> list[int]:
        async with (
            Peer.at("127.0.0.1", cluster._port(1)) as one,
            Peer.at("127.0.0.1", cluster._port(2)) as two,
            asyncio.TaskGroup() as tasks,
        ):
            asked = [
                tasks.create_task(resize(one, [0, 1])),
                tasks.create_task(resize(two, [1])),
            ]
            answers = [await each for each in asked]
        return sorted(each.error_code for each in answers)

    errors = asyncio.run(both())
    assert errors[0] == 0
    # The other one has come while the first was under way, or after it.
    assert errors[1] in (ErrorCode.RESIZE_IN_PROGRESS, ErrorCode.INVALID_REQUEST)
    assert_covering(cluster)


def test_idle_segments_of_different_leaders_merge(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:  # R3
    monkeypatch.setattr(stream_policy, "WINDOW_S_MIN", 0.05)
    policy = {"stream.rate.events.per.segment": "1000", "stream.cooldown.ms": "200"}
    ask(cluster, create_stream, segments=3, settings={**policy, "stream.segments.min": "2"})
    assert {cluster.leader("s", index) for index in range(3)} == set(ALL)
    wait_until(
        lambda: sorted(ask(cluster, states_of)) == ["open", "open", "sealed", "sealed"],
        deadline_s=DEADLINE_S,
        what="two of them have merged",
    )
    assert_covering(cluster)
