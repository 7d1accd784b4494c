"""A broker's registration: valid for as long as nobody can have seen its lease end."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from fencelog.broker.metadata.cluster_state import encoded_controller
from fencelog.broker.metadata.registration import fence, leave_replica_sets
from fencelog.coordination.controller.model import NO_LEADER, PartitionState, Registration
from fencelog.errors import FencedError, StorageError
from fencelog.ports import MetadataWrite
from fencelog.types import Instant, LeaderEpoch, NodeId
from fencelog_sim.world.gate import Lost
from fencelog_sim.world.metadata import SimStore
from tests.support.cluster_metadata import TTL_S, Host, in_background, in_virtual_time, topic_id_of

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)


def now() -> Instant:
    return Instant(asyncio.get_running_loop().time())


async def joined(store: SimStore, number: int = 1, *, life: int = 1) -> Host:
    return await Host(store, number, life=life).join(controls=False)


def test_a_broker_is_valid_for_as_long_as_it_renews() -> None:
    async def main() -> None:
        store = SimStore()
        host = Host(store, 1)
        assert not host.registration.is_valid(now())
        await host.join(controls=False)
        stored = store.values["broker/1"]
        assert Registration.decode("", stored[0]) == host.registration.registration
        assert host.registration.version == stored[1]
        for _ in range(100):
            await asyncio.sleep(1.0)
            assert host.registration.is_valid(now())
            # Three renewals fit into the time of the lease.
            assert host.registration.deadline - now() >= TTL_S * 2 / 3 - 0.01
        assert host.lost_at == []

    in_virtual_time(main)


def test_a_renewal_without_an_answer_says_why_it_failed(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        host = await joined(SimStore())

        async def never(verb: str, key: str, size: int) -> None:
            await asyncio.sleep(60)

        host.session.delay = never
        await asyncio.sleep(TTL_S - 1)

    in_virtual_time(main)
    assert "could not be renewed: the metadata store has not answered in time" in caplog.text


def test_the_time_counts_from_the_sending_of_a_renewal() -> None:
    async def main() -> None:
        store = SimStore()
        host = await joined(store)
        begun = now()

        async def slowly(verb: str, key: str, size: int) -> None:
            await asyncio.sleep(2.5)

        host.session.delay = slowly
        await asyncio.sleep(6.0)
        # Sent at 3, answered at 5.5, when the store begins to count.
        assert host.registration.deadline == pytest.approx(begun + 3.0 + TTL_S, abs=0.01)

    in_virtual_time(main)


def test_a_broker_without_the_store_ends_before_its_lease_does() -> None:
    async def main() -> None:
        store = SimStore()
        host = await joined(store)
        await asyncio.sleep(100)
        host.session.cut()
        begun = now()
        while host.registration.is_valid(now()):
            assert "broker/1" in store.values
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        assert len(host.lost_at) == 1
        assert TTL_S * 2 / 3 - 0.1 <= host.lost_at[0] - begun <= TTL_S
        host.session.heal()
        await asyncio.sleep(100)
        assert not host.registration.is_valid(now())
        assert len(host.lost_at) == 1
        assert "broker/1" not in store.values

    in_virtual_time(main)


def test_a_renewal_that_fails_is_tried_again() -> None:
    async def main() -> None:
        store = SimStore()
        host = await joined(store)
        for _ in range(20):
            host.session.cut()
            await asyncio.sleep(5.0)
            host.session.heal()
            await asyncio.sleep(1.0)
            assert host.registration.is_valid(now())
        assert host.lost_at == []

    in_virtual_time(main)


@pytest.mark.parametrize("pause_s", [8.0, 9.1, 60.0])
def test_a_broker_that_was_paused_is_invalid_in_its_first_step(pause_s: float) -> None:
    async def main() -> None:
        store = SimStore()
        host = await joined(store)
        seen: list[bool] = []

        async def look() -> None:
            while True:
                await asyncio.sleep(0.5)
                seen.append(host.registration.is_valid(now()))

        looking = host.loop.start(host.process, look())
        await asyncio.sleep(2.9)  # the next renewal is due
        assert all(seen)
        seen.clear()
        host.loop.pause(host.process)
        await asyncio.sleep(pause_s)
        # Whatever runs first: no timer has told it yet.
        assert host.registration.is_valid(now()) == (pause_s < TTL_S - 2.9)
        host.loop.resume(host.process)
        await asyncio.sleep(0.1)
        assert seen == [pause_s < TTL_S - 2.9]
        assert len(host.lost_at) == (pause_s > TTL_S - 2.9)
        looking.cancel()

    in_virtual_time(main)


def test_a_lease_that_the_store_has_ended_is_lost_at_the_next_renewal_or_change() -> None:
    async def main() -> None:
        store = SimStore()
        host = await joined(store)
        for each in store.leases():
            store.end(each)
        await asyncio.sleep(0.01)
        assert len(host.lost_at) == 1
        blind = await joined(store, 2)
        blind.session.lateness = lambda: 1000.0
        begun = now()
        for each in store.leases():
            store.end(each)
        await asyncio.sleep(TTL_S)
        (lost_at,) = blind.lost_at
        assert lost_at - begun <= TTL_S / 3 + 0.1

    in_virtual_time(main)


def test_an_earlier_life_of_the_same_directory_is_replaced_at_once() -> None:
    async def main() -> None:
        store = SimStore()
        old = await joined(store)
        old.kill()
        new = await joined(store, life=2)
        assert new.registration.is_valid(now())
        # The old life's lease ends, without the key of the new one.
        await asyncio.sleep(3 * TTL_S)
        assert new.lost_at == []
        assert Registration.decode("", store.values["broker/1"][0]).incarnation == "1/2"

    in_virtual_time(main)


def test_an_earlier_life_that_still_runs_is_lost() -> None:
    async def main() -> None:
        store = SimStore()
        old = await joined(store)
        await joined(store, life=2)
        await asyncio.sleep(0.01)
        assert len(old.lost_at) == 1

    in_virtual_time(main)


def test_the_end_of_an_earlier_life_that_is_seen_late_ends_no_later_one() -> None:
    async def main() -> None:
        store = SimStore()
        old = await joined(store)
        new = Host(store, 1, life=2)
        await new.state.start()
        new.session.lateness = lambda: 5.0
        in_background(new.state.run())
        await old.registration.end()
        await new.registration.begin()
        in_background(new.registration.run())
        assert new.state.revision < new.registration.version
        await new.state.until(lambda: new.state.revision == store.revision)
        assert new.lost_at == []

    in_virtual_time(main)


def test_another_broker_of_the_same_number_is_refused_by_name() -> None:
    async def main() -> None:
        store = SimStore()
        first = await joined(store)
        other = Host(store, 1)
        other.registration.registration = first.registration.registration._replace(
            directory="another", incarnation="x"
        )
        with pytest.raises(FencedError, match=r"broker 1 is registered already, at h:9092"):
            await other.join(controls=False)
        assert not other.registration.is_valid(now())
        await asyncio.sleep(TTL_S)
        assert first.lost_at == []

    in_virtual_time(main)


def test_a_registration_that_cannot_be_read_is_replaced() -> None:
    async def main() -> None:
        store = SimStore()
        store.commit([MetadataWrite("broker/1", b"garbage")])
        host = await joined(store)
        await asyncio.sleep(1)
        assert host.lost_at == []
        assert host.state.brokers[ONE].version == host.registration.version

    in_virtual_time(main)


@pytest.mark.parametrize("lost", [Lost(False), Lost(True), Lost(True, after_s=0.5)])
def test_a_registration_whose_answer_is_lost_is_there_once(lost: Lost) -> None:
    async def main() -> None:
        store = SimStore()
        host = Host(store, 1)
        answers = [lost]
        host.session.lose = lambda _verb, _key: answers.pop() if answers else None
        await host.join(controls=False)
        await asyncio.sleep(5 * TTL_S)
        assert host.lost_at == []
        assert store.version("broker/1") == host.registration.version

    in_virtual_time(main)


@pytest.mark.parametrize("lost", [None, Lost(False), Lost(True)])
def test_a_broker_that_stops_says_so_and_ends_its_lease(lost: Lost | None) -> None:
    async def main() -> None:
        store = SimStore()
        host, other = await joined(store), await joined(store, 2)
        answers = [lost]
        host.session.lose = lambda _verb, _key: answers.pop() if answers else None
        await host.registration.announce_stop()
        await other.state.until(lambda: other.state.brokers[ONE].registration.is_stopping)
        assert host.lost_at == []
        assert host.registration.version == store.version("broker/1")
        await host.registration.end()
        assert not host.registration.is_valid(now())
        await other.state.until(lambda: ONE not in other.state.brokers)
        await asyncio.sleep(1)
        assert host.lost_at == []
        assert host.tasks[1].done()

    in_virtual_time(main)


@pytest.mark.parametrize("lost", [None, Lost(False), Lost(True)])
def test_a_full_disk_and_room_again_are_stored_in_the_same_life(lost: Lost | None) -> None:
    async def main() -> None:
        store = SimStore()
        host, other = await joined(store), await joined(store, 2)
        begun_at = store.version("broker/1")

        def seen() -> Registration:
            return other.state.brokers[ONE].registration

        for is_full in (True, False, True):
            answers = [lost]
            host.session.lose = lambda _verb, _key: answers.pop() if answers else None  # noqa: B023
            await until_stored(host.registration.announce_full, is_full)
            await other.state.until(lambda: seen().is_full is is_full)  # noqa: B023
            assert other.state.brokers[ONE].begun_at == begun_at
            assert host.registration.version == store.version("broker/1") > begun_at
        await host.registration.announce_stop()
        await other.state.until(lambda: seen().is_stopping)
        assert seen() == host.registration.registration
        assert (seen().is_full, seen().begun_at, seen().rank) == (True, begun_at, 2)
        await asyncio.sleep(5 * TTL_S)
        assert host.lost_at == []

    in_virtual_time(main)


async def until_stored(announce: Callable[[bool], Awaitable[None]], is_full: bool) -> None:
    while True:
        with suppress(StorageError):
            return await announce(is_full)


def test_what_is_announced_at_once_is_all_stored() -> None:
    async def main() -> None:
        store = SimStore()
        host = await joined(store)
        mine = host.registration
        await asyncio.gather(mine.announce_full(True), mine.announce_stop())
        stored = Registration.decode("", store.values["broker/1"][0])
        assert (stored.is_full, stored.is_stopping) == (True, True)

    in_virtual_time(main)


def test_a_life_that_has_ended_announces_nothing() -> None:
    async def main() -> None:
        store = SimStore()
        host = await joined(store)
        await joined(store, 1, life=2)
        later = store.values["broker/1"]
        await host.registration.announce_full(True)
        assert store.values["broker/1"] == later
        assert store.commit([MetadataWrite("broker/1", None)])
        await host.registration.announce_full(True)
        assert "broker/1" not in store.values

    in_virtual_time(main)


# -- others --------------------------------------------------------------------------------------


def test_a_process_that_is_gone_is_fenced_at_once_with_the_key_of_the_controller() -> None:
    async def main() -> None:
        store = SimStore()
        gone, host = await joined(store), await joined(store, 2)
        value = encoded_controller(ONE, "1/1")
        store.commit([MetadataWrite("controller", value, 0, gone.registration.lease)])
        await host.state.until(lambda: host.state.controller is not None)
        version = host.state.brokers[ONE].version
        assert await fence(host.session, host.state, ONE, version)
        assert sorted(store.values) == ["broker/2"]
        await asyncio.sleep(0.01)
        assert len(gone.lost_at) == 1
        assert not await fence(host.session, host.state, ONE, version)

    in_virtual_time(main)


def test_a_process_that_is_gone_is_fenced_though_the_controller_s_key_has_changed() -> None:
    async def main() -> None:
        store = SimStore()
        gone, host = await joined(store), await joined(store, 2)
        value = encoded_controller(ONE, "1/1")
        store.commit([MetadataWrite("controller", value, 0, gone.registration.lease)])
        await host.state.until(lambda: host.state.controller is not None)
        host.session.lateness = lambda: 10.0
        store.commit([MetadataWrite("controller", value, None, gone.registration.lease)])
        version = host.state.brokers[ONE].version
        assert await fence(host.session, host.state, ONE, version)
        assert sorted(store.values) == ["broker/2", "controller"]

    in_virtual_time(main)


def test_a_newer_life_than_the_one_that_is_gone_is_not_fenced() -> None:
    async def main() -> None:
        store = SimStore()
        old, host = await joined(store), await joined(store, 2)
        await host.state.until(lambda: ONE in host.state.brokers)
        version = host.state.brokers[ONE].version
        old.kill()
        new = await joined(store, life=2)
        await host.state.until(lambda: host.state.brokers[ONE].version != version)
        assert not await fence(host.session, host.state, ONE, version)
        await asyncio.sleep(1)
        assert new.lost_at == []

    in_virtual_time(main)


def partition(number: int) -> str:
    return f"partition/{topic_id_of('t').hex()}/{number}"


def test_a_broker_that_may_have_lost_records_leaves_every_replica_set() -> None:
    async def main() -> None:
        store = SimStore()
        session = store.session()
        replicas, epoch = (ONE, TWO, THREE), LeaderEpoch(4)
        states = [
            PartitionState(replicas, ONE, epoch, replicas, (), "1/1"),
            PartitionState(replicas, TWO, epoch, (TWO, ONE), (), "2/1"),
            PartitionState(replicas, TWO, epoch, (TWO,), (ONE, THREE), "2/1"),
            PartitionState(replicas, ONE, epoch, (ONE,), (), "1/1"),
            PartitionState(replicas, TWO, epoch, (TWO,), (), "2/1"),
        ]
        many = states * 40
        for number, each in enumerate(many):
            store.commit([MetadataWrite(partition(number), each.encode())])
        store.commit([MetadataWrite("partition/x", b"garbage")])
        untouched = store.version(partition(4))
        writes = 0

        def contended(verb: str, key: str) -> Lost | None:
            nonlocal writes
            writes += 1
            if writes == 1:  # its leader changes one of the batch in between
                store.commit([MetadataWrite(partition(2), states[2].encode())])
            return Lost(True) if writes == 2 else None

        session.lose = contended
        assert await leave_replica_sets(session, ONE, "directory 1") == 160
        after = [
            PartitionState.decode("", store.values[partition(number)][0])
            for number in range(len(many))
        ]
        assert after[:5] == [
            PartitionState(replicas, NO_LEADER, LeaderEpoch(5), (TWO, THREE), ()),
            PartitionState(replicas, TWO, epoch, (TWO,), (), "2/1"),
            PartitionState(replicas, TWO, epoch, (TWO,), (THREE,), "2/1"),
            PartitionState(replicas, NO_LEADER, LeaderEpoch(5), (), ()),
            states[4],
        ]
        assert after == after[:5] * 40
        assert store.version(partition(4)) == untouched

    in_virtual_time(main)


async def with_partition(store: SimStore) -> bytes:
    """Store a partition that broker 1 leads, with broker 2 in sync."""
    state = PartitionState((ONE, TWO), ONE, LeaderEpoch(4), (ONE, TWO), (), "1/1").encode()
    store.commit([MetadataWrite(partition(0), state)])
    return state


def test_a_new_directory_does_not_take_a_live_broker_of_its_number_out_of_the_isr() -> None:
    async def main() -> None:
        store = SimStore()
        state = await with_partition(store)
        live = await joined(store)
        with pytest.raises(FencedError, match=r"^broker 1 is registered already, at h:9092 with"):
            await leave_replica_sets(store.session(), ONE, "another directory")
        assert store.values[partition(0)][0] == state
        await asyncio.sleep(2 * TTL_S)
        assert live.lost_at == []

    in_virtual_time(main)


def test_who_registers_while_another_directory_leaves_the_replica_sets_stays_in_sync() -> None:
    # The live broker's lease had ended, or another new broker is started at the same time.
    async def main() -> None:
        store = SimStore()
        state = await with_partition(store)
        live = Host(store, 1)
        value = live.registration.registration.encode()
        session = store.session()

        def registers(verb: str, key: str) -> Lost | None:
            if verb == "commit" and "broker/1" not in store.values:
                store.commit([MetadataWrite("broker/1", value)])
            return None

        session.lose = registers
        with pytest.raises(FencedError):
            await leave_replica_sets(session, ONE, "another directory")
        assert store.values[partition(0)][0] == state

    in_virtual_time(main)


def test_an_earlier_life_of_the_directory_ends_before_it_leaves_the_replica_sets() -> None:
    async def main() -> None:
        store = SimStore()
        await with_partition(store)
        earlier = await joined(store)
        assert await leave_replica_sets(store.session(), ONE, "directory 1") == 1
        await asyncio.sleep(0.01)
        assert len(earlier.lost_at) == 1
        assert PartitionState.decode("", store.values[partition(0)][0]).isr == (TWO,)

    in_virtual_time(main)
