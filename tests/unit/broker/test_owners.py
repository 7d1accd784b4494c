"""What a partition's owner means for those who write and read it, through a whole node (O8)."""

import asyncio
from pathlib import Path

import pytest

from fencelog.adapters.system_clock import SystemClock
from fencelog.broker.handlers import produce as produce_handler
from fencelog.broker.partitions.partition import Partition
from fencelog.errors import ErrorCode
from fencelog.log.ownership import Owner
from fencelog.log.values import Appended
from fencelog.node import Node
from fencelog.wire.own import owned_id, producers_key
from fencelog_sim.world.disk import Loss
from tests.support.log import NOW_MS, owner
from tests.support.node import Peer, World, batch, until, visible
from tests.support.storage import LOSSES, cut_at
from tests.support.transactions import Producer
from tests.unit.broker.test_configs import alter
from tests.unit.broker.test_delete_records import delete_records, delete_until_cut, until_cut

KEY = producers_key(None, "orders")
BEFORE = owner(16, session="before", holder="host-0")
READER = owner(3, "g", session="reader", holder="host-2")
OWNER = owner(17, session="mine", holder="host-1", transactional_id=owned_id(KEY, 17))
GROUPS_OWNER = owner(3, group="g", session="reader")
OWNERS = [READER, BEFORE, OWNER]
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
FENCED = ErrorCode.OWNER_FENCED
LONG_MS = 60_000


def partition_of(node: Node, topic: str = "t", number: int = 0) -> Partition:
    partition = node.broker.logs.get(topic, number)
    assert partition is not None
    return partition


async def own(node: Node, granted: Owner, topic: str = "t") -> Appended:
    """Return once the record is committed."""
    partition = partition_of(node, topic)
    outcome = partition.set_owner(granted, now_ms=NOW_MS)
    assert isinstance(outcome, Appended), outcome
    await partition.committed(outcome.end_offset)
    return outcome


def attach(node: Node, peer: Peer, session: str | None) -> None:
    """Bind a connection to a claim."""
    number = peer._writer.get_extra_info("sockname")[1]
    (connection,) = (c for c in node.server._connections if c.peer.endswith(f":{number}"))
    connection.session = session


WHO: dict[str, tuple[str | None, str | None]] = {
    "anybody": (None, None),
    "the owner": ("mine", None),
    "the owner in a group": ("reader", None),
    "the owner before": ("before", None),
    "another claim": ("theirs", None),
    "its transactional id": (None, OWNER.transactional_id),
    "an older transactional id": (None, owned_id(KEY, 16)),
    "another transactional id": ("mine", "x"),
}
"""Session of the connection, and transactional id."""

REFUSED_WHILE_OWNED = {
    "anybody": DENIED,
    "the owner in a group": DENIED,
    "the owner before": FENCED,
    "another claim": DENIED,
    "an older transactional id": ErrorCode.INVALID_PRODUCER_EPOCH,
    "another transactional id": DENIED,
}
REFUSED_AFTER_ITS_END = {
    "the owner": FENCED,
    "its transactional id": ErrorCode.INVALID_PRODUCER_EPOCH,
    "an older transactional id": ErrorCode.INVALID_PRODUCER_EPOCH,
    "another transactional id": FENCED,
}
"""Nobody owns it: but for the last owner's connections and ids, anybody writes."""
REQUIRED_AFTER_ITS_END = {**REFUSED_WHILE_OWNED, **REFUSED_AFTER_ITS_END}
REQUIRED_WITHOUT_ANY = dict.fromkeys(WHO, DENIED)


@pytest.mark.parametrize(
    ("ownership", "owners", "refused"),
    [
        ("off", [], {}),
        ("off", OWNERS, {}),
        ("if-owned", [], {}),
        ("if-owned", [OWNER._replace(group="g")], {}),
        ("if-owned", OWNERS, REFUSED_WHILE_OWNED),
        ("if-owned", [*OWNERS, OWNER._replace(is_live=False)], REFUSED_AFTER_ITS_END),
        ("required", [], REQUIRED_WITHOUT_ANY),
        ("required", OWNERS, REFUSED_WHILE_OWNED),
        ("required", [*OWNERS, OWNER._replace(is_live=False)], REQUIRED_AFTER_ITS_END),
    ],
)
async def test_who_may_write(
    world: World, ownership: str, owners: list[Owner], refused: dict[str, ErrorCode]
) -> None:  # O8
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t", ownership=ownership)
        for each in owners:
            await own(node, each)
        partition = partition_of(node)
        found = {}
        for who, (session, transactional_id) in WHO.items():
            attach(node, peer, session)
            end = partition.log.log_end_offset
            sent = batch("x")
            if transactional_id is not None:
                sent = batch("x", producer_id=7, epoch=0, sequence=0, transactional=True)
            result = await peer.produce("t", sent, transactional_id=transactional_id)
            # What the owners allow is the coordinator's to judge, and it knows no such producer.
            passed = result.error in (ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE) or (
                transactional_id is not None and result.error is not refused.get(who)
            )
            if not passed:
                found[who] = result.error
                assert partition.log.log_end_offset == end
                message = result.error_message or ""
                assert "t/0" in message or transactional_id is not None
                assert "host-1" in message or OWNER not in owners
        assert found == refused


async def test_a_transaction_of_the_owners_id_is_written_and_no_other(world: World) -> None:  # O8
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        await own(node, OWNER._replace(transactional_id="orders"))
        mine, theirs = Producer(peer, "orders"), Producer(peer, "others")
        for each in (mine, theirs):
            await each.init()
            await each.add("t", 0)
        assert await mine.produce("t", "a") is ErrorCode.NONE
        assert await theirs.produce("t", "b") is DENIED
        assert await mine.end(commit=True) is ErrorCode.NONE


async def test_a_fenced_owner_gets_no_answer_to_a_duplicate(world: World) -> None:  # O8, E4
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        await own(node, OWNER)
        attach(node, peer, "mine")
        sent = batch("a", producer_id=7, epoch=0, sequence=0)
        assert (await peer.produce("t", bytearray(sent))).error is ErrorCode.NONE
        await own(node, OWNER._replace(epoch=18, session="next"))
        assert (await peer.produce("t", bytearray(sent))).error is FENCED


async def test_without_acks_a_refused_writer_is_disconnected(world: World) -> None:  # O8
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        await own(node, OWNER)
        peer.send_produce("t", batch("a"), acks=0)
        assert await peer._reader.read() == b""
        assert partition_of(node).log.log_end_offset == 1


async def test_an_owner_that_comes_during_a_verification_is_in_force(world: World) -> None:  # O8
    async with world.node() as node, Peer.of(node) as peer, Peer.of(node) as other:
        await peer.create_topic("t")
        producer = Producer(peer)
        await producer.init()
        world.disk.hold("__transaction_state")
        request = asyncio.create_task(producer.produce("t", "a", version=12))
        await until(lambda: world.disk.waiting > 0, "the verification waits")
        await own(node, OWNER)
        world.disk.release()
        assert await request is DENIED
        assert visible(await other.fetch("t", isolation=0)) == []


async def test_an_owner_that_comes_while_records_are_checked_is_in_force(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:  # O8
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t", compression_type="gzip", max_message_bytes="10000000")
        original = produce_handler.check_in_slices

        async def slowly(broker, unopened):
            await own(node, OWNER)
            return await original(broker, unopened)

        monkeypatch.setattr(produce_handler, "check_in_slices", slowly)
        large = batch(*["x" * 100] * 20_000)
        assert (await peer.produce("t", large)).error is DENIED
        assert partition_of(node).log.log_end_offset == 1


async def test_owners_and_settings_hold_at_once_and_after_a_restart(world: World) -> None:  # O8
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        await own(node, OWNER)
        assert (await peer.produce("t", batch("a"))).error is DENIED
        assert await alter(peer, ownership="off") is ErrorCode.NONE
        assert (await peer.produce("t", batch("a"))).error is ErrorCode.NONE
        assert await alter(peer, ownership="if-owned") is ErrorCode.NONE
        assert (await peer.produce("t", batch("a"))).error is DENIED
    async with world.node() as node, Peer.of(node) as peer:
        assert partition_of(node).log.owner(None) == OWNER
        assert (await peer.produce("t", batch("a"))).error is DENIED
        attach(node, peer, "mine")
        assert (await peer.produce("t", batch("b"))).error is ErrorCode.NONE


# -- readers ---------------------------------------------------------------------------------------


async def test_an_attached_reader_reads_while_its_claim_lives(world: World) -> None:  # O8
    async with world.node() as node, Peer.of(node) as peer, Peer.of(node) as other:
        await peer.create_topic("t")
        await peer.create_topic("u")
        await peer.produce("t", batch("a"))
        await peer.produce("u", batch("b"))
        await own(node, OWNER._replace(group="g"))
        attach(node, peer, "mine")
        assert visible(await peer.fetch("t", isolation=0)) == [(0, "a")]
        await own(node, OWNER._replace(group="g", epoch=18, session="next"))
        refused = await peer.fetch("t", isolation=0)
        assert refused.error is FENCED
        assert not refused.records
        assert visible(await peer.fetch("u", isolation=0)) == [(0, "b")], "it never claimed it"
        assert visible(await other.fetch("t", isolation=0)) == [(0, "a")], "anybody may"
        attach(node, other, "next")
        assert visible(await other.fetch("t", isolation=0)) == [(0, "a")]
        await own(node, OWNER._replace(group="g", epoch=18, session="next", is_live=False))
        assert (await other.fetch("t", isolation=0)).error is FENCED


async def test_where_reading_needs_a_claim_nobody_else_reads(world: World) -> None:  # O8
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t", ownership_read="required")
        await peer.produce("t", batch("a"))
        assert (await peer.fetch("t", isolation=0)).error is DENIED
        attach(node, peer, "stranger")
        assert (await peer.fetch("t", isolation=0)).error is DENIED
        for number, group in enumerate((None, "g")):
            session = f"s{number}"
            await own(node, owner(1, group, session=session))
            attach(node, peer, session)
            assert visible(await peer.fetch("t", isolation=0)) == [(0, "a")]


@pytest.mark.parametrize("how", ["a grant", "an end", "a setting"])
async def test_a_parked_fetch_fails_at_once(world: World, how: str) -> None:  # O7, O8
    async with world.node() as node, Peer.of(node) as reader, Peer.of(node) as other:
        await other.create_topic("t")
        granted = OWNER._replace(group="g")
        await own(node, granted)
        attach(node, reader, None if how == "a setting" else "mine")
        waits = asyncio.create_task(
            reader.fetch("t", isolation=0, max_wait_ms=LONG_MS, min_bytes=1 << 20)
        )
        await until(lambda: partition_of(node)._purgatory._readers, "it waits")
        if how == "a grant":
            await own(node, granted._replace(epoch=18, session="next"))
        elif how == "an end":
            await own(node, granted._replace(is_live=False))
        else:
            assert await alter(other, ownership_read="required") is ErrorCode.NONE
        assert (await waits).error is (DENIED if how == "a setting" else FENCED)


async def test_an_owner_that_comes_during_a_read_is_in_force(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:  # O8
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        await peer.produce("t", batch("a"))
        await own(node, OWNER)
        attach(node, peer, "mine")
        read = Partition.read

        async def slowly(partition, *args, **more):
            found = await read(partition, *args, **more)
            await own(node, OWNER._replace(epoch=18, session="next"))
            return found

        monkeypatch.setattr(Partition, "read", slowly)
        answer = await peer.fetch("t", isolation=0)
        assert answer.error is FENCED
        assert not answer.records


# -- that the log keeps them -----------------------------------------------------------------------


async def test_owners_outlive_all_that_was_written_with_them(world: World) -> None:  # D4
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        await own(node, OWNER)
        assert await delete_records(peer, -1) == (ErrorCode.NONE, 1)
        assert partition_of(node).log.log_end_offset == 2
    async with world.node() as node, Peer.of(node) as peer:
        assert partition_of(node).log.owner(None) == OWNER
        assert await delete_records(peer, -1) == (ErrorCode.NONE, 2)
    async with world.node() as node:
        assert partition_of(node).log.owner(None) == OWNER


@pytest.mark.parametrize("way", ["deleted", "retained"])
@LOSSES
def test_a_power_cut_at_any_step_of_a_deletion_loses_no_owner(
    tmp_path: Path, loss: Loss, way: str
) -> None:  # D4
    async def scenario(step: int) -> bool:
        folder = tmp_path / str(step)
        folder.mkdir()
        world = World(folder)
        async with world.node(crash=True) as node, Peer.of(node) as peer:
            await peer.create_topic("t", segment_bytes="2000", retention_bytes="2000")
            await own(node, GROUPS_OWNER)
            await own(node, OWNER)
            attach(node, peer, OWNER.session)
            for number in range(30):
                await peer.produce("t", batch(f"{number:02}" * 100))
            await node.broker.logs.checkpoint()
            is_done = await gone_until_cut(world, node, step, way)
            world.disk = world.disk.power_loss(loss)
        async with world.node() as node:
            log = partition_of(node).log
            assert log.owners() == [GROUPS_OWNER, OWNER], step
            assert log.log_start_offset > 20 if is_done else log.log_start_offset >= 0
        return is_done

    step = 0
    while not asyncio.run(scenario(step)):
        step += 1
    assert step > 5, "a deletion that copies owners has several steps to be cut at"


async def gone_until_cut(world: World, node: Node, step: int, way: str) -> bool:
    """Delete records by an operator's wish or by retention; whether the power lasted."""
    if way == "deleted":
        return await delete_until_cut(world, node, step, 25)
    cut_at(world.disk, step)
    return await until_cut(node, retained(node)) is True


async def retained(node: Node) -> bool:
    await node.broker.logs.upkeep(SystemClock().now_ms())
    return True
