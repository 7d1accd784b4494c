"""Stock clients and streams: producers are told at once, consumers read every segment."""

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fencelog.client.blocking import Client
from tests.support.broker import BrokerProcess
from tests.support.resized_streams import Written, write_resized_stream
from tests.support.stock import KafkaPython, Seen, StockClient, ToSend

ISOLATIONS = ["read_committed", "read_uncommitted"]
DEADLINE_S = 20.0
AT_ONCE_S = 8.0
"""Of making a client, sending and closing it; those that retry do so for 30 seconds or more."""
REFUSED = r"(?i)policy.?violation"


@pytest.fixture(scope="module")
def address(shared_broker: BrokerProcess) -> str:
    return shared_broker.address


@pytest.fixture(scope="module")
def written(address: str) -> Written:
    return write_resized_stream(address, "resized-for-stock")


@pytest.fixture
def bounded() -> Iterator[Callable[..., Any]]:
    """Calls something in a thread: a client that retries for ever fails the test in time."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda call, *arguments: pool.submit(call, *arguments).result(DEADLINE_S)


def by_key(seen: list[Seen]) -> dict[bytes, list[bytes]]:
    """The values of each key in the order of the segments' numbers, and of offsets in them.

    A segment's number is higher than that of each of its predecessors, so this is a key's order.
    """
    found: dict[bytes, list[bytes]] = {}
    for each in sorted(seen, key=lambda one: (one.partition, one.offset)):
        assert each.key is not None
        assert each.value is not None
        found.setdefault(each.key, []).append(each.value)
    return found


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_every_segment_is_read_as_a_partition_past_its_seal(  # R1, R2
    address: str, client: StockClient, written: Written, isolation: str
) -> None:
    seen = client.read(address, "resized-for-stock", isolation=isolation)
    wanted = written.committed if isolation == "read_committed" else written.everything
    assert by_key(seen) == wanted
    assert len({each.partition for each in seen}) >= written.segments - 1


def test_a_stock_producer_is_told_at_once_and_where_the_client_shows_it_what_to_do(  # R1
    address: str, client: StockClient, topic: str, bounded: Callable[..., Any]
) -> None:
    with Client(address) as ours:
        ours.create_stream(topic, 1)
    begin = time.monotonic()
    with pytest.raises(Exception, match=REFUSED) as refused:
        bounded(client.write, address, topic, [ToSend(b"by partition count")])
    assert time.monotonic() - begin < AT_ONCE_S
    if isinstance(client, KafkaPython):
        text = f"topic {topic} is a stream: .* Write to it with fencelog's client"
        assert re.search(text, str(refused.value))
    assert client.read(address, topic, isolation="read_uncommitted") == []


def test_a_stock_transaction_that_is_refused_can_be_aborted(  # R1, E10
    address: str, client: StockClient, topic: str, bounded: Callable[..., Any]
) -> None:
    with Client(address) as ours:
        ours.create_stream(topic, 1)
        ours.create_topic(f"{topic}-plain", 1)
    writer = client.transactional(address, topic)
    try:
        writer.begin()
        with pytest.raises(Exception, match=REFUSED):
            bounded(writer.send, topic, b"by partition count")
        writer.abort()
    finally:
        writer.close()
    again = client.transactional(address, topic)
    try:
        again.begin()
        again.send(f"{topic}-plain", b"elsewhere")
        again.commit()
    finally:
        again.close()
    assert [each.value for each in client.read(address, f"{topic}-plain")] == [b"elsewhere"]
