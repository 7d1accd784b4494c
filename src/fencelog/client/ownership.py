"""Requests about ownership, for operators: who holds what, what changes, and to free it.

A group's resources are in one shard (O6); its broker answers for the group.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from fencelog.client.cluster import OWNERSHIP, Cluster
from fencelog.client.model import OwnershipDescription, ReleasedResource
from fencelog.client.retry import retrying
from fencelog.rpc.connection import Connection
from fencelog.rpc.deadline import Deadline
from fencelog.rpc.failures import failure
from fencelog.wire.messages.describe_ownership import (
    DescribeOwnershipRequest,
    DescribeOwnershipResponse,
    OwnershipState,
)
from fencelog.wire.messages.release_ownership import (
    ReleaseOwnershipRequest,
    ReleaseOwnershipResponse,
)
from fencelog.wire.messages.watch_ownership import (
    WatchedOwnership,
    WatchOwnershipRequest,
    WatchOwnershipResponse,
)
from fencelog.wire.primitives import error_code

T = TypeVar("T")
PAGE = 1000


class Ownership:
    """The requests about ownership other than a claim's own."""

    def __init__(self, cluster: Cluster) -> None:
        """Use the cluster's connections."""
        self._cluster = cluster

    async def describe(
        self, group: str | None, resources: Sequence[str] | None
    ) -> list[OwnershipDescription]:
        """Resources of a group that were ever claimed, by name: these, or all."""
        return (await self.snapshot(group, resources))[1]

    async def snapshot(
        self, group: str | None, resources: Sequence[str] | None
    ) -> tuple[int, list[OwnershipDescription]]:
        """The same, with the revision of the first page, from which ``changes`` goes on."""
        wanted = None if resources is None else list(resources)

        async def pages(deadline: Deadline) -> tuple[int, list[OwnershipDescription]]:
            broker = await self._cluster.coordinator(OWNERSHIP, group or "", deadline)
            request = DescribeOwnershipRequest(group=group, resources=wanted, limit=PAGE)
            return await self._pages(broker, request, deadline)

        return await self._retrying(group, pages)

    async def describe_all(self) -> list[OwnershipDescription]:
        """Every resource that was ever claimed, by group and name; the owners of writes first."""
        cluster = self._cluster
        deadline = cluster.deadline()
        view = await cluster.metadata([], deadline)
        found: list[OwnershipDescription] = []

        async def ask(node_id: int) -> None:
            address = cluster.address_of(node_id)
            assert address is not None, "it was in the metadata just now"
            broker = await cluster.connection(address, deadline)
            request = DescribeOwnershipRequest(all_groups=True, limit=PAGE)
            found.extend((await self._pages(broker, request, deadline))[1])

        for broker in view.brokers:
            await retrying(partial(ask, broker.node_id), deadline)
        return sorted(found, key=lambda each: (each.group or "", each.resource))

    async def watch(
        self, group: str | None, resources: Sequence[str] | None
    ) -> AsyncIterator[list[OwnershipDescription]]:
        """These resources as they are, then those that have changed, without end."""
        revision, found = await self.snapshot(group, resources)
        yield found
        while True:
            revision, found = await self.changes(group, resources, revision)
            if found:
                yield found

    async def changes(
        self, group: str | None, resources: Sequence[str] | None, revision: int
    ) -> tuple[int, list[OwnershipDescription]]:
        """Wait for a change after this revision; return the next revision and what has changed.

        Nothing has where the wait of half a request's time was over first.
        """
        request = WatchOwnershipRequest(
            group=group,
            resources=None if resources is None else list(resources),
            seen_revision=revision,
            max_wait_ms=int(self._cluster.options.request_timeout_s / 2 * 1000),
        )

        async def attempt(deadline: Deadline) -> tuple[int, list[OwnershipDescription]]:
            # A broker answers a connection in order: others go on meanwhile.
            address = await self._cluster.coordinator_address(OWNERSHIP, group or "", deadline)
            broker = await self._cluster.connection(address, deadline, "fetches")
            answer = await self._cluster.ask(broker, request, WatchOwnershipResponse, deadline)
            _check(answer.error_code, "watch of ownership", broker, answer.error_message)
            return answer.revision, [_described(each) for each in answer.resources]

        return await self._retrying(group, attempt)

    async def release(self, group: str | None, resources: Sequence[str]) -> list[ReleasedResource]:
        """Free resources, whoever holds them: each claim that has one of them ends as a whole."""
        request = ReleaseOwnershipRequest(group=group, resources=list(resources))

        async def attempt(deadline: Deadline) -> list[ReleasedResource]:
            broker = await self._cluster.coordinator(OWNERSHIP, group or "", deadline)
            answer = await self._cluster.ask(broker, request, ReleaseOwnershipResponse, deadline)
            _check(answer.error_code, "release of ownership", broker, answer.error_message)
            return [
                ReleasedResource(resource=each.resource, epoch=each.epoch)
                for each in answer.released
            ]

        return await self._retrying(group, attempt)

    # --- inside

    async def _pages(
        self, broker: Connection, request: DescribeOwnershipRequest, deadline: Deadline
    ) -> tuple[int, list[OwnershipDescription]]:
        found: list[OwnershipDescription] = []
        revision = None
        while True:
            answer = await self._cluster.ask(broker, request, DescribeOwnershipResponse, deadline)
            _check(answer.error_code, "description of ownership", broker, answer.error_message)
            revision = answer.revision if revision is None else revision
            found += [_described(each) for each in answer.resources]
            if not answer.has_more or not answer.resources:
                return revision, found
            last = answer.resources[-1]
            request.after_group, request.after_resource = last.group, last.resource

    async def _retrying(self, group: str | None, attempt: Callable[[Deadline], Awaitable[T]]) -> T:
        deadline = self._cluster.deadline()
        return await retrying(
            partial(attempt, deadline),
            deadline,
            lambda: self._cluster.forget_coordinator(OWNERSHIP, group or ""),
        )


def _check(code: int, what: str, broker: Connection, detail: str | None) -> None:
    if code:
        raise failure(error_code(code), f"{what} at broker {broker.address}", detail)


def _described(state: OwnershipState | WatchedOwnership) -> OwnershipDescription:
    return OwnershipDescription(
        group=state.group,
        resource=state.resource,
        state=state.state,
        generation=state.generation,
        epoch=state.epoch,
        holder=state.holder,
        host=state.host,
        since_ms=_known(state.since_ms),
        lease_ms=_known(state.lease_ms),
        fence_offset=_known(state.fence_offset),
        waiting=state.waiting,
    )


def _known(number: int) -> int | None:
    return None if number < 0 else number
