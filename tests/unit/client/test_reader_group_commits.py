"""Positions that two commits of a reader group change at a time: none goes back or is skipped."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import fencelog.aio
from fencelog.client.asynchronous import Producer
from fencelog.client.streams import segment_reader
from fencelog.client.streams.group_model import ReaderOfflineError
from fencelog.client.streams.group_reader import GroupReader
from fencelog.client.streams.reader_group import ReaderGroup
from fencelog.errors import ErrorCode, FencelogError, OwnershipLostError, RequestError
from fencelog.testing import LocalBroker
from tests.support.reader_groups import (
    crash,
    member_of,
    next_events,
    run_with_events,
    texts,
    until,
)

OVERTAKES_S = 0.3
"""For so long something is given the time to overtake another; it has to wait for it instead."""


@pytest.mark.slow
def test_a_position_that_a_transaction_commits_is_not_put_back_meanwhile(
    fencelog_broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # R6
    async def scenario(log: fencelog.aio.Client, group: ReaderGroup) -> None:
        in_transaction = segment_reader.commit_in_transaction
        reader = group.reader("r1", commit_interval_s=None)
        await reader.__aenter__()

        async def overtaken(*arguments: Any) -> None:
            await in_transaction(*arguments)
            overtaking.append(asyncio.create_task(member_of(reader).commit()))
            await asyncio.wait(overtaking, timeout=OVERTAKES_S)

        overtaking: list[asyncio.Task[None]] = []
        monkeypatch.setattr(segment_reader, "commit_in_transaction", overtaken)
        assert len(await next_events(reader, 3)) == 3
        async with reader.transaction() as transaction:
            await transaction.send("out", b"x")
        await asyncio.wait_for(overtaking[0], 20)
        await crash(reader)
        async with group.reader("r2") as other:
            assert await next_events(other) == [f"k:{number}" for number in range(3, 10)]

    run_with_events(fencelog_broker, scenario)


@pytest.mark.slow
def test_a_committed_transaction_without_an_answer_keeps_its_position(
    fencelog_broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # R6: the reader is left by the error, and goes offline
    async def scenario(log: fencelog.aio.Client, group: ReaderGroup) -> None:
        commit = Producer.commit

        async def unanswered(producer: Producer) -> None:
            await commit(producer)
            raise RequestError(ErrorCode.NETWORK_EXCEPTION, "the answer is lost")

        async def copy() -> None:
            async with group.reader("r1", commit_interval_s=None) as reader:
                assert len(await next_events(reader, 3)) == 3
                async with reader.transaction() as transaction:
                    await transaction.send("out", b"x")

        monkeypatch.setattr(Producer, "commit", unanswered)
        with pytest.raises(RequestError, match="is lost"):
            await copy()
        monkeypatch.undo()
        assert texts(fencelog_broker.records("out")) == ["x"]
        async with group.reader("r2") as other:
            assert await next_events(other) == [f"k:{number}" for number in range(3, 10)]

    run_with_events(fencelog_broker, scenario)


@pytest.mark.slow
def test_a_segment_that_ends_here_is_not_committed_beyond_what_was_handed_out(
    fencelog_broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # R6: the reader commits all of its segments while one of them is given away
    async def scenario(log: fencelog.aio.Client, group: ReaderGroup) -> None:
        async with group.reader("r1", commit_interval_s=None) as reader:
            assert len(await next_events(reader, 3)) == 3
            segment = member_of(reader).segments[0]
            claim = segment._claim
            assert claim is not None
            release, is_let = claim.release, asyncio.Event()

            async def released_later() -> None:
                await is_let.wait()
                await release()

            monkeypatch.setattr(claim, "release", released_later)
            ending = asyncio.create_task(segment.stop())
            await until(segment._task.done, "it reads no more")
            await segment.commit()
            is_let.set()
            await ending
            await crash(reader)
        async with group.reader("r2") as other:
            assert await next_events(other) == [f"k:{number}" for number in range(10)]

    run_with_events(fencelog_broker, scenario)


@pytest.mark.slow
@pytest.mark.parametrize(
    "ask",
    [GroupReader.next_batch, GroupReader.commit, lambda reader: anext(aiter(reader))],
    ids=["batch", "commit", "event"],
)
def test_inside_of_a_transaction_its_events_are_not_processed(
    fencelog_broker: LocalBroker, ask: Callable[[GroupReader], Awaitable[object]]
) -> None:
    # R6: the position is committed with the transaction alone, also after a misuse
    async def scenario(log: fencelog.aio.Client, group: ReaderGroup) -> None:
        async def misused() -> None:
            async with reader.transaction() as transaction:
                await transaction.send("out", b"x")
                with pytest.raises(FencelogError, match="more events"):
                    await asyncio.wait_for(ask(reader), 20)
                await member_of(reader).commit()
                raise ZeroDivisionError

        async with group.reader("r1", commit_interval_s=None) as reader:
            assert len(await next_events(reader, 3)) == 3
            with pytest.raises(ZeroDivisionError):
                await misused()
            await crash(reader)
        async with group.reader("r2") as other:
            assert await next_events(other) == [f"k:{number}" for number in range(10)]
        assert fencelog_broker.records("out") == []

    run_with_events(fencelog_broker, scenario)


@pytest.mark.slow
def test_a_misuse_that_is_caught_inside_of_a_transaction_does_no_harm(
    fencelog_broker: LocalBroker,
) -> None:
    # R6
    async def scenario(log: fencelog.aio.Client, group: ReaderGroup) -> None:
        async with group.reader("r1", commit_interval_s=None) as reader:
            assert len(await next_events(reader, 3)) == 3
            async with reader.transaction() as transaction:
                with pytest.raises(FencelogError, match="begin another one"):
                    async with reader.transaction():
                        pass
                await transaction.send("out", b"x")
            assert await next_events(reader, 3) == [f"k:{number}" for number in range(3, 6)]
        assert texts(fencelog_broker.records("out")) == ["x"]

    run_with_events(fencelog_broker, scenario)


@pytest.mark.slow
def test_a_reader_that_is_closed_inside_of_its_transaction_has_not_processed_its_events(
    fencelog_broker: LocalBroker,
) -> None:
    # R6
    async def scenario(log: fencelog.aio.Client, group: ReaderGroup) -> None:
        async def closed() -> None:
            async with reader.transaction() as transaction:
                await transaction.send("out", b"x")
                await reader.close()

        async with group.reader("r1", commit_interval_s=None) as reader:
            assert len(await next_events(reader, 3)) == 3
            with pytest.raises(FencelogError, match="this reader is closed"):
                await closed()
        async with group.reader("r2") as other:
            assert await next_events(other) == [f"k:{number}" for number in range(10)]
        assert fencelog_broker.records("out") == []

    run_with_events(fencelog_broker, scenario)


@pytest.mark.slow
def test_a_reader_that_was_declared_offline_commits_nothing_any_more(
    fencelog_broker: LocalBroker,
) -> None:
    # R6: also where no other reader takes its segments, and it has not heard of it
    async def scenario(log: fencelog.aio.Client, group: ReaderGroup) -> None:
        async with group.reader("r1", commit_interval_s=None) as reader:
            assert len(await next_events(reader, 3)) == 3
            segment = member_of(reader).segments[0]
            assert segment._claim is not None
            await member_of(reader)._end_tasks()
            await group.reader_offline("r1")
            with pytest.raises(ReaderOfflineError):
                await reader.commit()
            assert await group.stream_cut() == {0: 0}
            await asyncio.wait_for(segment._claim.lost.wait(), 20)  # it is not claimed again

    run_with_events(fencelog_broker, scenario)


@pytest.mark.slow
def test_a_commit_of_a_reader_whose_name_another_one_has_is_an_error(
    fencelog_broker: LocalBroker,
) -> None:
    # R6
    async def scenario(log: fencelog.aio.Client, group: ReaderGroup) -> None:
        async with group.reader("r1", commit_interval_s=None) as former:
            assert len(await next_events(former, 3)) == 3
            async with group.reader("r1", commit_interval_s=None) as reader:
                assert await next_events(reader) == [f"k:{number}" for number in range(10)]
                with pytest.raises(ReaderOfflineError):
                    await former.commit()
                assert await group.stream_cut() == {0: 0}

    run_with_events(fencelog_broker, scenario)


@pytest.mark.slow
@pytest.mark.parametrize("is_begun_again", [False, True])
def test_a_commit_says_that_processed_events_are_handed_out_again(
    fencelog_broker: LocalBroker, *, is_begun_again: bool
) -> None:
    # R6: the reader is online, and has lost the claim of its segment
    async def scenario(log: fencelog.aio.Client, group: ReaderGroup) -> None:
        async with group.reader("r1", commit_interval_s=None) as reader:
            assert len(await next_events(reader, 3)) == 3
            if is_begun_again:  # with the first three processed
                assert len(await next_events(reader, 3)) == 3
            member = member_of(reader)
            segment = member.segments[0]
            segment._lost(OwnershipLostError(ErrorCode.OWNER_FENCED, "it was taken"))
            if is_begun_again:
                await until(lambda: member.segments.get(0) not in (segment, None), "another one")
            with pytest.raises(OwnershipLostError, match="it was taken"):
                await reader.commit()
            assert await next_events(reader) == [f"k:{number}" for number in range(10)]
            await reader.commit()
            await crash(reader)
        async with group.reader("r1") as reader:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.next_batch(), 0.5)

    run_with_events(fencelog_broker, scenario)


@pytest.mark.slow
def test_a_commit_of_what_a_reset_has_overtaken_is_no_error(fencelog_broker: LocalBroker) -> None:
    # R10: committed before the reset or not, it does not count
    async def scenario(log: fencelog.aio.Client, group: ReaderGroup) -> None:
        async with group.reader("r1", commit_interval_s=None) as reader:
            assert len(await next_events(reader, 3)) == 3
            segment = member_of(reader).segments[0]
            await group.reset({0: 2})
            await until(lambda: member_of(reader).segments.get(0) is not segment, "it is reset")
            await reader.commit()
            assert await next_events(reader) == [f"k:{number}" for number in range(2, 10)]

    run_with_events(fencelog_broker, scenario)
