"""A shared state on a real broker: concurrent updates, lost answers, marks, and bad topics (R4)."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

import fencelog.aio
from fencelog.client.streams.conditional import append_if_unchanged
from fencelog.client.streams.synchronizer import StateSynchronizer
from fencelog.client.topic_changes import TopicChanges
from fencelog.coordination.synchronizer.records import (
    ForeignRecordError,
    SynchronizerError,
    UpdateId,
    UpdateTooLargeError,
    encode_updates,
)
from fencelog.coordination.synchronizer.replica import Schema
from fencelog.errors import ErrorCode, RequestError
from fencelog.testing import LocalBroker
from fencelog.types import TopicPartition

PLACE = TopicPartition("state", 0)
Names = tuple[str, ...]


def add(names: Names, value: object, offset: int) -> Names:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} at {offset} is no name")
    return (*names, value)


def load(value: object) -> Names:
    assert isinstance(value, list)
    return tuple(value)


NAMES: Schema[Names] = Schema(initial=(), apply=add, dump=list, load=load)
Scenario = Callable[[fencelog.aio.Client], Awaitable[None]]


def run(broker: LocalBroker, scenario: Scenario, *, partitions: int = 1, **settings: str) -> None:
    async def main() -> None:
        async with await fencelog.aio.connect(
            broker.bootstrap, client_id="copies", request_timeout_s=5.0
        ) as log:
            configs = {key.replace("_", "."): value for key, value in settings.items()}
            await log.create_topic("state", partitions, configs)
            await scenario(log)

    asyncio.run(main())


def append(copy: StateSynchronizer[Names], name: str) -> Awaitable[int | None]:
    """Add the name with the number of names before it: it tells on which state it was decided."""
    return copy.update(lambda names: [f"{name}{len(names)}"])


def test_an_update_is_decided_on_the_state_that_it_follows(fencelog_broker: LocalBroker) -> None:
    # R4
    async def scenario(log: fencelog.aio.Client) -> None:
        one, other = log.synchronizer("state", NAMES), log.synchronizer("state", NAMES)
        await one.fetch()
        assert await append(other, "b") == 0
        assert await append(one, "a") == 1  # its copy was old: the function ran again
        assert one.state == ("b0", "a1")
        assert await other.fetch() == one.state
        assert await other.update(lambda names: ["x", "y"] if len(names) == 2 else None) == 2
        assert await one.update(lambda names: ["z"] if len(names) == 2 else None) is None
        assert one.state == ("b0", "a1", "x", "y")

    run(fencelog_broker, scenario)


def test_concurrent_updates_are_one_after_the_other(fencelog_broker: LocalBroker) -> None:
    # R4
    async def scenario(log: fencelog.aio.Client) -> None:
        copies = [log.synchronizer("state", NAMES) for _ in range(4)]

        async def many(copy: StateSynchronizer[Names], name: str) -> None:
            for _ in range(10):
                await append(copy, name)

        async with asyncio.TaskGroup() as tasks:
            for copy, name in zip(copies, "abcd", strict=True):
                tasks.create_task(many(copy, name))
        states = {await copy.fetch() for copy in copies}
        (state,) = states
        assert [int(each[1:]) for each in state] == list(range(40))
        assert await log.synchronizer("state", NAMES).fetch() == state

    run(fencelog_broker, scenario)


def test_an_update_whose_answer_is_lost_is_stored_once(fencelog_broker: LocalBroker) -> None:
    # R4
    async def scenario(log: fencelog.aio.Client) -> None:
        copy = log.synchronizer("state", NAMES)
        await append(copy, "a")
        with fencelog_broker.hold("Produce", client_id="copies") as held:
            update = asyncio.create_task(asyncio.wait_for(append(copy, "b"), 20))
            await asyncio.to_thread(held.wait)
            held.drop_answer()
            assert await update == 1
        assert copy.state == ("a0", "b1")
        assert len(fencelog_broker.records("state")) == 2
        assert await append(copy, "c") == 2

    run(fencelog_broker, scenario)


def test_a_lost_answer_is_settled_although_the_log_was_compacted(
    fencelog_broker: LocalBroker,
) -> None:
    # R4
    async def scenario(log: fencelog.aio.Client) -> None:
        copy = log.synchronizer("state", NAMES)
        await append(copy, "a")
        async with await fencelog.aio.connect(fencelog_broker.bootstrap) as others:
            other = others.synchronizer("state", NAMES)
            with (
                fencelog_broker.hold("Produce", client_id="copies") as held,
                fencelog_broker.hold("ListOffsets", client_id="copies") as reading,
            ):
                update = asyncio.create_task(asyncio.wait_for(append(copy, "b"), 20))
                await asyncio.to_thread(held.wait)
                held.drop_answer()
                await asyncio.to_thread(reading.wait)
                await other.fetch()
                assert await other.compact() == 2
                reading.release()
                assert await update == 1
        assert copy.state == ("a0", "b1")
        assert (await log.offsets([PLACE], "earliest"))[PLACE] == 2

    run(fencelog_broker, scenario)


def test_late_joiners_begin_at_the_mark(fencelog_broker: LocalBroker) -> None:
    # R4
    async def scenario(log: fencelog.aio.Client) -> None:
        copy, old = log.synchronizer("state", NAMES), log.synchronizer("state", NAMES)
        await old.fetch()
        for name in "abc":
            await append(copy, name)
        assert await copy.compact() == 3
        late = log.synchronizer("state", NAMES)
        assert await late.fetch() == copy.state
        assert late.updates_since_mark == 0
        # One that was reading below the mark goes on at it.
        assert await append(old, "d") == 4
        assert old.state == ("a0", "b1", "c2", "d3")

    run(fencelog_broker, scenario)


def test_a_crash_before_the_deletion_of_compaction_does_no_harm(
    fencelog_broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # R4
    async def scenario(log: fencelog.aio.Client) -> None:
        copy = log.synchronizer("state", NAMES)
        await append(copy, "a")

        async def crash(*_: object) -> None:
            raise ConnectionResetError

        with monkeypatch.context() as patch:
            patch.setattr(TopicChanges, "delete_records", crash)
            with pytest.raises(ConnectionResetError):
                await copy.compact()
        late = log.synchronizer("state", NAMES)
        assert await late.fetch() == ("a0",)
        await append(late, "b")
        assert await late.compact() == 3
        assert await log.synchronizer("state", NAMES).fetch() == ("a0", "b1")

    run(fencelog_broker, scenario)


def test_a_revision_of_another_leader_epoch_is_refused(fencelog_broker: LocalBroker) -> None:
    # R4
    async def scenario(log: fencelog.aio.Client) -> None:
        copy = log.synchronizer("state", NAMES)
        await append(copy, "a")
        revision = copy._replica.revision
        other = revision._replace(leader_epoch=revision.leader_epoch + 1)
        batch = encode_updates(UpdateId("w", 0, 1), ["b"], 0)
        deadline = log.cluster.deadline()
        with pytest.raises(RequestError) as found:
            await append_if_unchanged(log.cluster, PLACE, batch, copy.topic_id, other, deadline)
        assert found.value.code is ErrorCode.STALE_REVISION
        await append_if_unchanged(log.cluster, PLACE, batch, copy.topic_id, revision, deadline)
        assert await copy.fetch() == ("a0", "b")

    run(fencelog_broker, scenario)


def test_who_waits_is_told_of_an_update(fencelog_broker: LocalBroker) -> None:
    async def scenario(log: fencelog.aio.Client) -> None:
        copy, other = log.synchronizer("state", NAMES), log.synchronizer("state", NAMES)
        await copy.fetch()
        waiting = asyncio.create_task(asyncio.wait_for(copy.wait_changed(), 10))
        await append(other, "a")
        assert await waiting == ("a0",)

    run(fencelog_broker, scenario)


def test_a_foreign_record_is_an_error_that_names_topic_and_offset(
    fencelog_broker: LocalBroker,
) -> None:
    async def scenario(log: fencelog.aio.Client) -> None:
        copy = log.synchronizer("state", NAMES)
        await append(copy, "a")
        async with await log.producer() as producer:
            await producer.send("state", b"garbage")
        with pytest.raises(ForeignRecordError, match=r"offset 1 of state-0 .* delete the topic"):
            await append(copy, "b")
        with pytest.raises(ForeignRecordError, match="offset 1 of state-0"):
            await log.synchronizer("state", NAMES).fetch()

    run(fencelog_broker, scenario)


def test_an_update_that_the_topic_does_not_accept_is_refused_before_it_is_sent(
    fencelog_broker: LocalBroker,
) -> None:
    async def scenario(log: fencelog.aio.Client) -> None:
        copy = log.synchronizer("state", NAMES)
        noise = Random(1).randbytes(10_000).hex()
        with pytest.raises(UpdateTooLargeError, match=r"max\.message\.bytes is 1000"):
            await copy.update(lambda _: [noise])
        with pytest.raises(TypeError, match="is no name"):
            await copy.update(lambda _: [17])
        assert fencelog_broker.records("state") == []
        assert await append(copy, "a") == 0

    run(fencelog_broker, scenario, max_message_bytes="1000")


def test_a_topic_with_two_partitions_is_refused(fencelog_broker: LocalBroker) -> None:
    async def scenario(log: fencelog.aio.Client) -> None:
        with pytest.raises(SynchronizerError, match="state has 2 partitions"):
            await log.synchronizer("state", NAMES).fetch()
        with pytest.raises(RequestError) as found:
            await log.synchronizer("missing", NAMES).fetch()
        assert found.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(fencelog_broker, scenario, partitions=2)


def test_updates_that_were_deleted_without_a_mark_are_missed(fencelog_broker: LocalBroker) -> None:
    async def scenario(log: fencelog.aio.Client) -> None:
        copy = log.synchronizer("state", NAMES)
        await append(copy, "a")
        await append(copy, "b")
        await TopicChanges(log.cluster).delete_records({PLACE: 1})
        with pytest.raises(SynchronizerError, match="begins at offset 1, and not with a mark"):
            await log.synchronizer("state", NAMES).fetch()

    run(fencelog_broker, scenario)


def test_an_update_is_never_stored_in_a_topic_that_was_made_again(
    fencelog_broker: LocalBroker,
) -> None:
    # R4
    async def scenario(log: fencelog.aio.Client) -> None:
        copy = log.synchronizer("state", NAMES)
        await append(copy, "a")
        await log.delete_topic("state")
        await log.create_topic("state")
        other = log.synchronizer("state", NAMES)
        assert await append(other, "b") == 0
        assert other._replica.revision == copy._replica.revision, "nothing else tells them apart"
        with pytest.raises(SynchronizerError, match="another topic has its name"):
            await append(copy, "c")
        assert await log.synchronizer("state", NAMES).fetch() == ("b0",)

    run(fencelog_broker, scenario)


def test_a_topic_that_was_made_again_is_not_taken_for_the_state(
    fencelog_broker: LocalBroker,
) -> None:
    async def scenario(log: fencelog.aio.Client) -> None:
        copy = log.synchronizer("state", NAMES)
        await append(copy, "a")
        await log.delete_topic("state")
        await log.create_topic("state")
        with pytest.raises(SynchronizerError, match="deleted and made again"):
            await copy.fetch()
        other = log.synchronizer("state", NAMES)
        assert await append(other, "b") == 0
        assert await append(other, "c") == 1
        with pytest.raises(SynchronizerError, match="deleted and made again"):
            await copy.fetch()

    run(fencelog_broker, scenario)
