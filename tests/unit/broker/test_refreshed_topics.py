"""A request that changes a topic is decided from what is stored, not from an older copy of it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fencelog.errors import ErrorCode, RequestError
from fencelog.types import NodeId
from fencelog.wire.messages.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResponse,
)
from fencelog.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from fencelog.wire.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from fencelog_sim.world.metadata import SimStore
from tests.support.cluster_metadata import cluster, in_virtual_time
from tests.support.node import Peer, World

Change = Callable[[Peer], Awaitable[ErrorCode]]
TOPIC_RESOURCE = 2
BROKERS = (NodeId(1), NodeId(2), NodeId(3))


async def delete(peer: Peer) -> ErrorCode:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")])
    (answer,) = (await peer.ask(request, 6, DeleteTopicsResponse)).responses
    assert answer.name == "t"
    return ErrorCode(answer.error_code)


async def widen(peer: Peer) -> ErrorCode:
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name="t", count=3, assignments=None)]
    )
    (answer,) = (await peer.ask(request, 3, CreatePartitionsResponse)).results
    return ErrorCode(answer.error_code)


async def configure(peer: Peer) -> ErrorCode:
    config = AlterableConfig(name="retention.ms", value="1000")
    resource = AlterConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name="t", configs=[config]
    )
    request = AlterConfigsRequest(resources=[resource])
    (answer,) = (await peer.ask(request, 2, AlterConfigsResponse)).responses
    return ErrorCode(answer.error_code)


CHANGES = pytest.mark.parametrize("change", [delete, widen, configure])


class Stored:
    """What another broker has stored, which this one knows once it has refreshed the topic."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.error: RequestError | None = None

    async def refresh(self, names: Iterable[str]) -> None:
        for name in names:
            if self.error is not None:
                raise self.error
            await self._peer.create_topic(name, partitions=2)


@asynccontextmanager
async def late(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Peer, Stored]]:
    async with World(folder).node() as node, Peer.of(node) as peer, Peer.of(node) as other:
        stored = Stored(other)
        monkeypatch.setattr(node.broker.controller, "refresh", stored.refresh)
        yield peer, stored


@CHANGES
async def test_a_topic_that_another_broker_has_just_made_can_be_changed(
    change: Change, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with late(tmp_path, monkeypatch) as (peer, _):
        assert await change(peer) is ErrorCode.NONE


@CHANGES
async def test_where_the_store_does_not_answer_nothing_is_said_of_the_topic(
    change: Change, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with late(tmp_path, monkeypatch) as (peer, stored):
        stored.error = RequestError(ErrorCode.REQUEST_TIMED_OUT, "no answer")
        assert await change(peer) is ErrorCode.REQUEST_TIMED_OUT


def test_a_change_is_decided_from_what_is_stored_not_from_what_was_seen() -> None:
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *BROKERS)
        topics, late = hosts[0].topics, hosts[1]
        await late.topics.create_topic("old", 1, {})
        await hosts[0].state.until(lambda: "old" in hosts[0].state.topics)
        late.session.lateness = lambda: 3.0
        await topics.delete_topic(hosts[0].state.topics["old"].topic)
        made = await topics.create_topic("new", 1, {})
        assert late.catalog.get("old") is not None
        assert late.catalog.get("new") is None

        again = await late.topics.create_topic("old", 2, {})
        assert late.catalog.get("old") == again

        made_again = await topics.create_topic("newer", 1, {})
        assert late.catalog.get("newer") is None
        await late.topics.refresh(["new", "newer", "never"])
        assert late.catalog.get("new") == made
        assert late.catalog.get("newer") == made_again
        await topics.delete_topic(made)
        assert late.catalog.get("new") == made
        await late.topics.refresh(["new"])
        assert late.catalog.get("new") is None

    in_virtual_time(main)


def test_a_topic_that_another_broker_makes_at_the_same_time_is_known_once_it_is_refused() -> None:
    async def main() -> None:
        hosts = await cluster(SimStore(), *BROKERS)
        late = hosts[1]
        late.session.lateness = lambda: 3.0
        made = await hosts[0].topics.create_topic("t", 1, {})
        assert late.catalog.get("t") is None
        with pytest.raises(RequestError) as refused:
            await late.topics.create_topic("t", 2, {})
        assert refused.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
        assert late.catalog.get("t") == made

    in_virtual_time(main)


def test_without_the_store_nothing_is_known_of_topics() -> None:
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *BROKERS)
        hosts[0].session.cut()
        with pytest.raises(RequestError) as refused:
            await hosts[0].topics.refresh(["t"])
        assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT

    in_virtual_time(main)
