"""Claims that ask too much: typed errors, bounded memory, nothing changed."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

from fencelog.broker.coordinators import ownership_requests
from fencelog.broker.coordinators.runtime import CoordinatorRuntime
from fencelog.broker.handlers import ownership as ownership_handlers
from fencelog.coordination.ownership import progress as progress_module
from fencelog.coordination.ownership.model import OwnershipLimits, OwnershipTask
from fencelog.coordination.ownership.pages import OwnershipState
from fencelog.coordination.ownership.state import Grant
from fencelog.coordination.ownership.table import OwnershipTable
from fencelog.coordination.ownership.work import task_of
from fencelog.errors import ErrorCode, StorageError
from fencelog.log import ownership
from fencelog.log.ownership import Owner
from fencelog.log.partition_log import PartitionLog
from fencelog.node import Node
from fencelog.types import Instant
from fencelog.wire.message import Message
from fencelog.wire.messages.describe_ownership import (
    DescribeOwnershipRequest,
    DescribeOwnershipResponse,
)
from fencelog.wire.messages.release_ownership import (
    ReleaseOwnershipRequest,
    ReleaseOwnershipResponse,
)
from fencelog.wire.messages.watch_ownership import WatchOwnershipRequest, WatchOwnershipResponse
from tests.support.node import Peer, World, until
from tests.support.ownership import Claimant, described

INVALID = ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("resources", "how", "error", "text"),
    [
        ([], {}, INVALID, "at least one resource"),
        ([""], {}, INVALID, "empty"),
        (["a", "b", "a"], {}, INVALID, "'a' is named twice"),
        (["ä" * 501], {}, INVALID, "1002 bytes; the limit is 1000"),
        (["x" * 1_000_000], {}, INVALID, "string of 1000000 bytes, limit 32767"),
        ([str(n) for n in range(1001)], {}, ErrorCode.POLICY_VIOLATION, "1001 resources"),
        ([str(n) for n in range(100_000)], {}, ErrorCode.POLICY_VIOLATION, "100000 resources"),
        ([("a", -2)], {}, INVALID, "generation -2 of 'a'"),
        ([("a", -(2**63))], {}, INVALID, "generation"),
        ([("a", 2**62 + 1)], {}, INVALID, f"the generation {2**62 + 1} of 'a' is above {2**62}"),
        ([("a", 1, -2)], {}, INVALID, "previous epoch -2 of 'a'"),
        (["__fencelog.own//x"], {}, INVALID, "begins with __fencelog"),
        (["a"], {"name": "a/b"}, INVALID, "slash"),
        (["a"], {"name": ""}, INVALID, "empty"),
        (["a"], {"wait_ms": -1, "claim_id": "1"}, INVALID, "negative"),
        (["a"], {"wait_ms": 1}, INVALID, "claim id"),
        (["a"], {"claim_id": "x" * 1001}, INVALID, "claim id"),
        (["a"], {"lease_ms": 499}, ErrorCode.INVALID_SESSION_TIMEOUT, "499 ms"),
        (["a"], {"lease_ms": 2**31 - 1}, ErrorCode.INVALID_SESSION_TIMEOUT, "900000 ms"),
    ],
    ids=lambda value: repr(value)[:30],
)
async def test_a_claim_that_no_state_would_allow_says_what_is_wrong_with_it(
    world: World, resources: list[Any], how: dict[str, Any], error: ErrorCode, text: str
) -> None:
    async with world.node() as node, Peer.of(node) as one:
        answer = await Claimant(one).own(*resources, **how)
        assert answer.error_code == error, answer.error_message
        assert text in (answer.error_message or "")
        assert len(answer.error_message or "") < 300
        assert await described(one) == []
        assert (await Claimant(one).own("a")).error_code == 0


async def test_a_group_has_a_name_or_is_null(world: World) -> None:
    async with world.node() as node, Peer.of(node) as one:
        answer = await Claimant(one, group="").own("a")
        assert answer.error_code == ErrorCode.INVALID_GROUP_ID
        answer = await Claimant(one, group="g" * 1001).own("a")
        assert answer.error_code == INVALID
        answer = await Claimant(one, holder="h" * 1001).own("a")
        assert answer.error_code == INVALID


async def test_partitions_that_nobody_may_own_are_named(world: World) -> None:
    async with world.node() as node, Peer.of(node) as one:  # O6
        await one.create_topic("t")
        await Claimant(one).own("makes the internal topic")
        async with Peer.of(node) as two:
            answer = await Claimant(two).own("t/0", "t/1", "none/0", "__fencelog_ownership/0")
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        named = [(each.resource, each.error_code) for each in answer.resources]
        assert named == [
            ("t/1", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("none/0", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("__fencelog_ownership/0", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ]
        assert answer.resources[0].error_message == "t/1 does not exist"


async def test_a_partition_with_owners_in_all_groups_it_may_have_takes_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:  # O9
    monkeypatch.setattr(ownership, "GROUPS_MAX", 2)
    async with world.node() as node, AsyncExitStack() as stack:
        first, second, third = [
            Claimant(await stack.enter_async_context(Peer.of(node)), group=group)
            for group in ("a", "b", "c")
        ]
        await first.peer.create_topic("t")
        for each in (first, second):
            assert (await each.own("t/0")).error_code == 0
        refused = await third.own("t/0")
        assert refused.error_code == ErrorCode.POLICY_VIOLATION
        assert "t/0 has owners in" in (refused.resources[0].error_message or "")
        await first.release()
        await until(lambda: not owner_of(node, "a").is_live, "its end stands in the log")
        assert (await third.own("t/0")).error_code == 0


async def test_a_claim_that_a_partition_refuses_for_good_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:  # O9
    """Others were granted between the check and the grant."""
    monkeypatch.setattr(ownership, "GROUPS_MAX", 1)
    monkeypatch.setattr(PartitionLog, "has_room_for_owner", lambda *_: True)
    async with world.node() as node, Peer.of(node) as one, Peer.of(node) as two:
        await one.create_topic("t")
        assert (await Claimant(one, group="a").own("t/0")).error_code == 0
        late = Claimant(two, group="b")
        async with asyncio.timeout(10):
            refused = await late.own("t/0")
            assert refused.error_code == ErrorCode.POLICY_VIOLATION
            assert "t/0 has owners in" in (refused.resources[0].error_message or "")
            assert (await described(two, group="b"))[0].state == "free"
            await until(lambda: not node.ownership_sender._doing, "nothing is left to do")
        assert (await late.own("x")).error_code == 0


def owner_of(node: Node, group: str, index: int = 0) -> Owner:
    partition = node.logs.get("t", index)
    assert partition is not None
    owner = partition.log.owner(group)
    assert owner is not None
    return owner


@pytest.mark.parametrize(
    ("limits", "names", "text"),
    [
        ({"resources_max": 2}, ["x", "y"], "resources were ever claimed"),
        ({"waiting_max": 0}, ["a"], "claims wait at this coordinator"),
        ({"waiting_resources_max": 1}, ["a", "x"], "may want"),
    ],
    ids=["resources", "waiting", "resources waited for"],
)
async def test_the_limit_that_is_reached_is_named(
    world: World, limits: dict[str, int], names: list[str], text: str
) -> None:
    async with world.node() as node, Peer.of(node) as one, Peer.of(node) as two:
        await Claimant(one).own("a")
        loaded = await node.ownership.shard_of("")
        loaded.shard._limits = OwnershipLimits(**limits)
        refused = await Claimant(two).own(*names, claim_id="1", wait_ms=1)
        assert refused.error_code == ErrorCode.POLICY_VIOLATION
        assert text in (refused.error_message or "")


async def test_a_claim_of_a_partition_that_is_offline_is_answered(world: World) -> None:
    async with world.node() as node, Peer.of(node) as one, asyncio.timeout(10):  # D2
        await one.create_topic("t", partitions=2)
        node.logs.get("t", 1).fail(StorageError("no more"))
        answer = await Claimant(one).own("x", "t/0", "t/1")
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert [each.resource for each in answer.resources] == ["t/1"]
        assert (await Claimant(one).own("x", "t/0")).resources[0].epoch == 1


async def test_a_claim_of_a_partition_that_fails_under_it_is_answered_and_holds_up_nobody(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:  # D2, O9
    async with world.node() as node, Peer.of(node) as one, Peer.of(node) as two:
        await one.create_topic("t", partitions=2)
        first = Claimant(one)
        world.disk.hold("t-")
        first.send_own("t/0", "t/1", "x")
        await until(partial(_has_begun, node, 1), "it is granted, and its work is begun")
        node.logs.get("t", 1).fail(StorageError("no more"))
        world.disk.release()
        async with asyncio.timeout(10):
            answer = await first.owned()
            assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            (named,) = answer.resources
            assert named.error_message == "t/1 is offline: repair its disk, restart the broker"
            assert "t-1 is offline and cannot be told its owner (no more)" in caplog.text
            assert (await Claimant(two).own("t/0", "x")).error_code == 0
            await until(lambda: not node.ownership_sender._doing, "nothing is left to do")


async def test_a_claim_ends_though_a_partition_of_it_has_failed_and_a_start_tells_it(
    world: World,
) -> None:  # D2, O9
    async with world.node() as node, Peer.of(node) as one, asyncio.timeout(10):
        await one.create_topic("t", partitions=2)
        async with Peer.of(node) as two:
            assert (await Claimant(two, group="g").own("t/0", "t/1")).error_code == 0
            node.logs.get("t", 1).fail(StorageError("no more"))
        other = Claimant(one, group="g", holder="other")
        await until(lambda: not owner_of(node, "g").is_live, "its end stands in the log")
        assert (await other.own("t/0")).error_code == 0
        await until(lambda: not node.ownership_sender._doing, "nothing is left to do")
    async with world.node() as node:
        assert owner_of(node, "g").is_live
        assert not owner_of(node, "g", 1).is_live


async def test_what_operators_ask_has_limits(world: World) -> None:
    async with world.node() as node, Peer.of(node) as one:
        for limit in (0, -1):
            request = DescribeOwnershipRequest(limit=limit)
            answer = await one.ask(request, 0, DescribeOwnershipResponse)
            assert answer.error_code == INVALID
        names = [str(number) for number in range(1001)]
        too_many = await one.ask(
            DescribeOwnershipRequest(resources=names), 0, DescribeOwnershipResponse
        )
        assert too_many.error_code == ErrorCode.POLICY_VIOLATION
        released = await one.ask(
            ReleaseOwnershipRequest(resources=names), 0, ReleaseOwnershipResponse
        )
        assert released.error_code == ErrorCode.POLICY_VIOLATION
        unknown = await one.ask(
            ReleaseOwnershipRequest(session="nobody's"), 0, ReleaseOwnershipResponse
        )
        assert (unknown.error_code, unknown.released) == (0, [])


async def test_an_operator_is_told_of_the_resources_it_names(world: World) -> None:
    """However many are freed: those of four claims are more than one decision ends."""
    async with world.node() as node, AsyncExitStack() as stack:
        for each in "abcd":
            peer = await stack.enter_async_context(Peer.of(node))
            answer = await Claimant(peer).own(*(f"{each}{number}" for number in range(400)))
            assert answer.error_code == 0
        names = ["a1", "b1", "c1", "d1", "d2", "never"]
        operator = await stack.enter_async_context(Peer.of(node))
        released = await operator.ask(
            ReleaseOwnershipRequest(resources=names), 0, ReleaseOwnershipResponse
        )
        assert released.error_code == 0
        assert [(each.resource, each.epoch) for each in released.released] == [
            (each, 1) for each in names[:-1]
        ]
        states = await described(operator, *names, "a2", "d3")
        assert {each.state for each in states} == {"free"}


async def test_claims_that_wait_cost_nothing_while_nothing_changes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.node() as node, AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(Peer.of(node)) for _ in range(200)]
        holder, *waiting = [Claimant(each) for each in peers]
        await holder.own("a")
        for each in waiting:
            each.send_own("a", claim_id="1", wait_ms=60_000)
        requests = node.broker.ownership_requests
        await until(lambda: len(requests._claims) == len(waiting), "all wait")
        reads, read_on = [], node.ownership.read_on

        async def counted(*what: Any) -> Any:
            reads.append(what)
            return await read_on(*what)

        monkeypatch.setattr(node.ownership, "read_on", counted)
        async with Peer.of(node) as peer:
            for _ in range(10):
                other = Claimant(peer)
                assert (await other.own("b")).error_code == 0
                await other.release()
            assert len(reads) == 10  # one for each of these claims
            assert (await described(peer, "a"))[0].waiting == 199


@pytest.mark.parametrize("kind", ["watches", "waits that end"])
async def test_each_iteration_wakes_a_few_of_those_who_wait_for_one_thing(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(ownership_requests, "WAKES_MAX", 2)
    async with world.node() as node, Peer.of(node) as one, Peer.of(node) as two:
        await Claimant(one).own("a")
        requests, loaded = node.broker.ownership_requests, await node.ownership.shard_of("")
        loop = asyncio.get_running_loop()
        ends = Instant(loop.time() + (3600 if kind == "watches" else 0.2))
        seen, woken = loaded.shard.revision(None), []

        async def waits() -> None:
            woken.append((await requests.changed(None, seen, ends), iteration))

        tasks = [asyncio.create_task(waits()) for _ in range(9)]
        iteration = 0
        await until(lambda: requests._watching == 9, "all wait")
        if kind == "watches":
            Claimant(two).send_own("b")
        while len(woken) < len(tasks):
            await asyncio.sleep(0)
            iteration += 1
        assert {changed for changed, _ in woken} == {kind == "watches"}
        assert max(Counter(at for _, at in woken).values()) <= 2


async def test_the_work_of_many_claims_is_made_once_for_each(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a slow disk under large claims keeps the loop busy with work that is being done."""
    made: list[str] = []

    def counted(grant: Grant, table: OwnershipTable) -> OwnershipTask:
        made.append(grant.session)
        return task_of(grant, table)

    monkeypatch.setattr(progress_module, "task_of", counted)
    async with world.node() as node, AsyncExitStack() as stack:
        claimants = [Claimant(await stack.enter_async_context(Peer.of(node))) for _ in range(20)]
        await claimants[0].peer.create_topic("t", partitions=20)
        world.disk.hold("t-")
        for number, each in enumerate(claimants):
            each.send_own(f"t/{number}")
            begun = partial(_has_begun, node, number + 1)
            await until(begun, "it is granted, and its work is begun")
        world.disk.release()
        assert {(await each.owned()).error_code for each in claimants} == {0}
        assert len(made) == 20


def _has_begun(node: Node, count: int) -> bool:
    return len(node.ownership_sender._doing) == count


async def test_watches_that_nobody_reads_keep_no_memory(world: World) -> None:
    settings = {"queued_response_bytes_max": 8 << 20}
    async with world.node(**settings) as node, AsyncExitStack() as stack, Peer.of(node) as one:
        await Claimant(one).own(*(f"{number:0>900}" for number in range(900)))
        watchers = [await stack.enter_async_context(Peer.of(node)) for _ in range(20)]
        for peer in watchers:
            for _ in range(20):
                request = WatchOwnershipRequest(seen_revision=-1, max_wait_ms=60_000)
                peer.send(request.API_KEY, 0, request.write(0))
        await until(lambda: node.server.responses.is_scarce, "their answers fill the budget")
        for _ in range(20):
            assert (await described(one, "0" * 900))[0].state == "held"
            assert node.server.responses.free > -(2 << 20)
        assert watchers


async def test_a_watch_of_many_changes_tells_some_and_goes_on_from_there(world: World) -> None:
    async with world.node() as node, AsyncExitStack() as stack:
        for first in range(0, 3000, 500):
            peer = await stack.enter_async_context(Peer.of(node))
            names = (str(number) for number in range(first, first + 500))
            assert (await Claimant(peer).own(*names)).error_code == 0
        seen, told = -1, []
        while len(told) < 3000:
            request = WatchOwnershipRequest(seen_revision=seen, max_wait_ms=60_000)
            answer = await peer.ask(request, 0, WatchOwnershipResponse)
            assert len(answer.resources) <= 1500
            assert answer.revision > seen
            seen = answer.revision
            told += [each.resource for each in answer.resources]
        assert sorted(told, key=int) == [str(number) for number in range(3000)]


@pytest.mark.parametrize("kind", ["watch", "describe", "describe all"])
async def test_pages_that_have_waited_for_one_commit_are_answered_in_turns(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    iteration, built = 0, Counter[int]()
    fields = ownership_handlers._fields

    def recorded(state: OwnershipState) -> dict[str, Any]:
        built[iteration] += 1
        return fields(state)

    def tick() -> None:
        nonlocal iteration
        iteration += 1
        asyncio.get_running_loop().call_soon(tick)

    request: Message = DescribeOwnershipRequest(group=None, all_groups=kind == "describe all")
    if kind == "watch":
        request = WatchOwnershipRequest(seen_revision=-1, max_wait_ms=60_000)
    monkeypatch.setattr(ownership_handlers, "_fields", recorded)
    async with world.node() as node, AsyncExitStack() as stack, Peer.of(node) as one:
        await Claimant(one).own(*map(str, range(30)))
        peers = [await stack.enter_async_context(Peer.of(node)) for _ in range(10)]
        world.disk.hold("__")
        late = Claimant(await stack.enter_async_context(Peer.of(node)))
        late.send_own("late")
        await until(lambda: world.disk.waiting == 1, "its claim is appended, and not committed")
        waiting = 0
        await_commit = CoordinatorRuntime.await_commit

        async def counted(*args: Any) -> None:
            nonlocal waiting
            waiting += 1
            await await_commit(*args)

        monkeypatch.setattr(CoordinatorRuntime, "await_commit", counted)
        # A watch looks at the revision first; it was committed then.
        monkeypatch.setattr(node.broker.ownership_requests, "changed", _is_changed)
        for peer in peers:
            peer.send(request.API_KEY, 0, request.write(0))
        await until(lambda: waiting >= 10, "all have their pages, and wait for the commit")
        asyncio.get_running_loop().call_soon(tick)
        assert not built
        world.disk.release()
        await until(lambda: sum(built.values()) >= 300, "all are answered")
    assert max(built.values()) <= 31


async def _is_changed(*_: object) -> bool:
    return True
