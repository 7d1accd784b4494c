"""Clients that wait for milliseconds only: whoever expires disturbs nobody else.

Deadlines of less than a millisecond ahead are what loops treat differently, and the broker process
runs on the loop that users have.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from fencelog.errors import ErrorCode
from fencelog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from fencelog.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from fencelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tests.support.broker import BrokerProcess
from tests.support.node import Peer, batch

CLIENTS = 8
REQUESTS = 400
IN_FLIGHT = 20
WAVES = 40


@asynccontextmanager
async def connected(broker: BrokerProcess) -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_connection(broker.host, broker.port)
    try:
        yield Peer(reader, writer)
    finally:
        writer.close()
        await writer.wait_closed()


def play(
    broker: BrokerProcess, topic: str, work: Callable[[Peer, int], Coroutine[Any, Any, None]]
) -> None:
    """Let clients work at once; each is answered all that it asked, or fails."""

    async def client(number: int) -> None:
        async with connected(broker) as peer:
            await work(peer, number)

    async def scenario() -> None:
        async with connected(broker) as peer:
            await peer.create_topic(topic)
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(client(number))

    asyncio.run(scenario())


def test_timeouts_of_milliseconds_are_answered_to_all_who_wait(
    fsync_broker: BrokerProcess, topic: str
) -> None:
    async def produces(peer: Peer, number: int) -> None:
        for _ in range(REQUESTS // IN_FLIGHT):
            for sent in range(IN_FLIGHT):
                peer.send_produce(topic, batch("v"), timeout_ms=1 + (number + sent) % 5)
            for _ in range(IN_FLIGHT):
                answer = await peer.produced()
                assert answer.error in {ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT}

    play(fsync_broker, topic, produces)
    assert "Traceback" not in fsync_broker.stderr


def test_transactions_that_expire_in_waves_leave_every_client_connected(
    broker: BrokerProcess, topic: str
) -> None:
    async def transacts(peer: Peer, number: int) -> None:
        for wave in range(WAVES):
            name = f"{number}-{wave}"
            asked = InitProducerIdRequest(
                transactional_id=name, transaction_timeout_ms=1 + (number + wave) % 5
            )
            who = await peer.ask(asked, 4, InitProducerIdResponse)
            assert who.error_code == ErrorCode.NONE
            begun = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=name,
                v3_and_below_producer_id=who.producer_id,
                v3_and_below_producer_epoch=who.producer_epoch,
                v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=[0])],
            )
            await peer.ask(begun, 3, AddPartitionsToTxnResponse)
            ended = EndTxnRequest(
                transactional_id=name,
                producer_id=who.producer_id,
                producer_epoch=who.producer_epoch,
                committed=True,
            )
            await peer.ask(ended, 3, EndTxnResponse)  # it may have expired

    play(broker, topic, transacts)
    assert "Traceback" not in broker.stderr
