"""Claims over plain requests, for scripts that measure the broker and no client library."""

import asyncio
from dataclasses import dataclass

from fencelog.client.cluster import parse_address
from fencelog.rpc.connection import Connection, connect
from fencelog.rpc.deadline import Deadline
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.hot import read_produce_response, write_produce_request
from fencelog.wire.messages.attach_owner import AttachOwnerRequest, AttachOwnerResponse
from fencelog.wire.messages.describe_ownership import (
    DescribeOwnershipRequest,
    DescribeOwnershipResponse,
)
from fencelog.wire.messages.own import OwnRequest, OwnResource, OwnResponse
from fencelog.wire.messages.release_ownership import (
    ReleaseOwnershipRequest,
    ReleaseOwnershipResponse,
)
from fencelog.wire.records import RecordToWrite, build_batch

LIMIT_S = 60.0
LEASE_MS = 900_000
PRODUCE_VERSION = 9


async def dial(address: str) -> Connection:
    """Open a connection."""
    return await connect(*parse_address(address), "bench", Deadline(LIMIT_S))


@dataclass
class Claimed:
    """A claim that was granted, and its two connections."""

    control: Connection
    data: Connection

    async def write(self, topic: str, value: bytes) -> None:
        """Write one record to partition 0 as the owner."""
        await write(self.data, topic, value)

    def die(self) -> None:
        """Close both connections, as the kernel does for a process that was killed."""
        self.control.close()
        self.data.close()


async def write(connection: Connection, topic: str, value: bytes) -> None:
    """Write one record to partition 0, and wait for its acknowledgement."""
    batch = memoryview(build_batch([RecordToWrite(None, value, 0)]))
    body = write_produce_request(PRODUCE_VERSION, None, -1, 30_000, [(topic, [(0, batch)])])
    answer = await connection.call(ApiKey.PRODUCE, PRODUCE_VERSION, body, Deadline(LIMIT_S))
    ((_, (result,)),) = read_produce_response(answer, PRODUCE_VERSION).topics
    assert not result.error, result


async def own(control: Connection, resources: list[str], *, wait_ms: int = 0) -> OwnResponse:
    """Claim once on this connection."""
    request = OwnRequest(
        resources=[OwnResource(resource=each) for each in resources],
        holder="bench",
        session_timeout_ms=LEASE_MS,
        claim_id=resources[0],
        wait_ms=wait_ms,
    )
    body = await control.call(ApiKey.OWN, 0, [request.write(0)], Deadline(LIMIT_S))
    return OwnResponse.read(body, 0)


async def release(control: Connection, answer: OwnResponse) -> None:
    """Release what this answer grants."""
    request = ReleaseOwnershipRequest(session=answer.session)
    body = await control.call(ApiKey.RELEASE_OWNERSHIP, 0, [request.write(0)], Deadline(LIMIT_S))
    assert not ReleaseOwnershipResponse.read(body, 0).error_code


async def attached(address: str, answer: OwnResponse) -> Connection:
    """Open a connection for the claim that this answer grants."""
    assert answer.session is not None, answer.error_message
    connection = await dial(address)
    request = AttachOwnerRequest(
        session=answer.session, epoch=max(each.epoch for each in answer.resources)
    )
    body = await connection.call(ApiKey.ATTACH_OWNER, 0, [request.write(0)], Deadline(LIMIT_S))
    assert not AttachOwnerResponse.read(body, 0).error_code
    return connection


async def claim(address: str, resources: list[str], *, wait_ms: int = 0) -> Claimed:
    """Claim, repeat while it waits, and attach."""
    control = await dial(address)
    while True:
        answer = await own(control, resources, wait_ms=wait_ms)
        if not answer.error_code:
            return Claimed(control, await attached(address, answer))
        assert wait_ms, answer.error_message


async def is_waiting(address: str, resource: str, count: int) -> None:
    """Return once so many claims wait for a resource."""
    connection = await dial(address)
    request = DescribeOwnershipRequest(resources=[resource])
    while True:
        body = await connection.call(
            ApiKey.DESCRIBE_OWNERSHIP, 0, [request.write(0)], Deadline(LIMIT_S)
        )
        (state,) = DescribeOwnershipResponse.read(body, 0).resources
        if state.waiting >= count:
            connection.close()
            return
        await asyncio.sleep(0.001)
