"""A reader of a group that ends at any moment ends its claims and closes its connections."""

import asyncio

import pytest

import fencelog.aio
from fencelog.client.asynchronous import Claim
from fencelog.client.streams.reader_group import ReaderGroup
from fencelog.testing import LocalBroker
from tests.support.reader_groups import member_of, next_events, run_with_events

WAITS_S = 0.3
"""For so long something is given the time not to wait; it has to."""


@pytest.mark.slow
def test_a_reader_that_closes_while_it_stops_a_segment_waits_for_the_end_of_its_claim(
    fencelog_broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # R9
    async def scenario(log: fencelog.aio.Client, group: ReaderGroup) -> None:
        release, begun, go_on = Claim.release, asyncio.Event(), asyncio.Event()

        async def slow(ends: Claim) -> None:
            if ends is claim:
                begun.set()
                await go_on.wait()
            await release(ends)

        reader = group.reader("r1", commit_interval_s=None)
        await reader.__aenter__()
        assert await next_events(reader, 1) == ["k:0"]
        (segment,) = member_of(reader).segments.values()
        claim = segment._claim
        assert claim is not None
        monkeypatch.setattr(Claim, "release", slow)
        await segment.abandon()
        await asyncio.wait_for(begun.wait(), 20)
        closing = asyncio.create_task(reader.close())
        assert not (await asyncio.wait([closing], timeout=WAITS_S))[0]
        assert claim.connections._connections
        go_on.set()
        await asyncio.wait_for(closing, 20)
        assert "released" in repr(claim)
        assert all(each.closed for each in claim.connections._connections.values())

    run_with_events(fencelog_broker, scenario)


@pytest.mark.slow
def test_a_claim_ends_with_its_segment_also_where_the_producer_cannot_be_closed(
    fencelog_broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # R9
    async def scenario(log: fencelog.aio.Client, group: ReaderGroup) -> None:
        async def fails() -> None:
            raise OSError("not closed")

        reader = group.reader("r1", commit_interval_s=None)
        await reader.__aenter__()
        assert await next_events(reader, 1) == ["k:0"]
        (segment,) = member_of(reader).segments.values()
        async with reader.transaction():
            pass
        assert segment._producer is not None
        monkeypatch.setattr(segment._producer[0], "close", fails)
        member, claim = member_of(reader), segment._claim
        with pytest.raises(OSError, match="not closed"):
            await reader.close()
        assert "released" in repr(claim)
        assert "released" in repr(member._claim)
        for cluster in (member._cluster, member._watching):
            assert not cluster._connections

    run_with_events(fencelog_broker, scenario)
