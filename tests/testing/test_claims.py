"""Stock clients and claims: older producers are fenced; nobody retries what is refused (O8)."""

import asyncio
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from aiokafka.structs import TopicPartition as AioPlace
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as PythonPlace

from fencelog.broker.context import Broker
from fencelog.client.blocking import Client
from fencelog.errors import ErrorCode
from fencelog.log.ownership import Owner
from fencelog.testing import LocalBroker
from fencelog.types import TopicPartition
from fencelog.wire.own import owned_id, producers_key
from tests.support.stock import CLIENTS, Confluent, Fenced, StockClient, ToSend
from tests.support.stock.aio import AioWriter
from tests.support.stock.confluent import ConfluentWriter
from tests.support.stock.members import AioMember, ConfluentMember, KafkaPythonMember

pytest_plugins = ["fencelog.testing"]

DEADLINE_S = 20.0
KEY = producers_key("g", "orders")
REFUSED = r"(?i)topic.?auth"
MEMBERS = [ConfluentMember, KafkaPythonMember, AioMember]


@pytest.fixture(params=list(CLIENTS))
def client(request: pytest.FixtureRequest) -> StockClient:
    """Each of the three client libraries."""
    return CLIENTS[request.param]


@pytest.fixture
def bounded() -> Iterator[Callable[..., Any]]:
    """Calls something in a thread: a client that retries for ever fails the test in time."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda call, *arguments: pool.submit(call, *arguments).result(DEADLINE_S)


def own(broker: LocalBroker, epoch: int) -> None:
    """Let the claim of this epoch own the transactional ids of the name, and the commits."""
    owner = Owner("g", epoch, f"s{epoch}", owned_id(KEY, epoch), "me", is_live=True)
    node = broker._started()
    node.run(_own(node._broker, owner))


async def _own(broker: Broker, owner: Owner) -> None:
    place = TopicPartition("orders", 0)
    assert owner.transactional_id is not None
    await broker.groups.decide("g", lambda shard, now: shard.set_owner("g", owner, [place]))
    error = ErrorCode.CONCURRENT_TRANSACTIONS
    while error is not ErrorCode.NONE:
        await asyncio.sleep(0)
        error = await broker.transactions.decide(
            owner.transactional_id,
            lambda shard, now: shard.set_owner(KEY, owner, wall_ms=broker.clock.now_ms()),
        )


def values(broker: LocalBroker) -> list[bytes | None]:
    return [record.value for record in broker.records("orders")]


@pytest.mark.parametrize("step", ["send", "commit"])
def test_an_older_producer_gets_its_fencing_error_inside_a_transaction(
    client: StockClient, fencelog_broker: LocalBroker, bounded: Callable[..., Any], step: str
) -> None:
    fencelog_broker.create_topic("orders")
    address = fencelog_broker.bootstrap
    own(fencelog_broker, 9)
    old = client.transactional(address, owned_id(KEY, 9))
    try:
        old.begin()
        old.send("orders", b"zombie's")
        own(fencelog_broker, 10)
        with pytest.raises(Fenced):
            bounded(*((old.send, "orders", b"late") if step == "send" else (old.commit,)))
    finally:
        old.close()
    new = client.transactional(address, owned_id(KEY, 10))
    try:
        new.begin()
        new.send("orders", b"owner's")
        new.commit()
    finally:
        new.close()
    with pytest.raises(Fenced):
        bounded(client.transactional, address, owned_id(KEY, 9))
    assert values(fencelog_broker) == [b"owner's"]


def test_an_id_that_no_claim_was_given_is_not_asked_for_again_and_again(
    client: StockClient, fencelog_broker: LocalBroker, bounded: Callable[..., Any]
) -> None:
    with pytest.raises(Exception, match=r"(?i)transactional.?id.?auth"):
        bounded(client.transactional, fencelog_broker.bootstrap, owned_id(KEY, 9))


@pytest.mark.parametrize("member", MEMBERS)
def test_a_commit_that_is_refused_is_not_repeated(
    member: Any, fencelog_broker: LocalBroker, bounded: Callable[..., Any]
) -> None:
    fencelog_broker.create_topic("orders")
    Confluent().write(fencelog_broker.bootstrap, "orders", [ToSend(b"1")])
    consumer = member(fencelog_broker.bootstrap, "g", "orders")
    try:
        while not consumer.poll():
            pass
        own(fencelog_broker, 9)
        with pytest.raises(Exception, match=REFUSED):
            bounded(consumer.commit, {0: 1})
        assert consumer.committed(0) is None
    finally:
        consumer.close()


def commit_offset(writer: Any, offset: int) -> None:
    """End the open transaction with an offset of the group, by the client's own calls."""
    producer = writer._producer
    if isinstance(writer, AioWriter):
        places = {AioPlace("orders", 0): offset}
        writer._run(producer.send_offsets_to_transaction(places, "g"))
    elif isinstance(writer, ConfluentWriter):
        consumer = Consumer({"group.id": "g"})
        metadata = consumer.consumer_group_metadata()
        consumer.close()
        producer.send_offsets_to_transaction([Place("orders", 0, offset)], metadata, DEADLINE_S)
    else:
        offsets = {PythonPlace("orders", 0): OffsetAndMetadata(offset, "", -1)}
        producer.send_offsets_to_transaction(offsets, "g")
    writer.commit()


def is_refusal(error: Exception) -> bool:
    """Whether the client says what the broker did: aiokafka tells it of the cause only."""
    return re.search(REFUSED, f"{error!r} {error.__cause__!r}") is not None


def test_offsets_in_a_transaction_are_refused_for_good_unless_they_are_the_owners(
    client: StockClient, fencelog_broker: LocalBroker, bounded: Callable[..., Any]
) -> None:
    fencelog_broker.create_topic("orders")
    own(fencelog_broker, 9)
    foreign = client.transactional(fencelog_broker.bootstrap, "mine")
    try:
        foreign.begin()
        with pytest.raises(Exception, check=is_refusal):  # noqa: B017 - each has its own
            bounded(commit_offset, foreign, 7)
    finally:
        foreign.close()
    owners = client.transactional(fencelog_broker.bootstrap, owned_id(KEY, 9))
    try:
        owners.begin()
        bounded(commit_offset, owners, 8)
    finally:
        owners.close()
    with Client(fencelog_broker.bootstrap) as reader:
        assert reader.committed_offsets("g") == {TopicPartition("orders", 0): 8}
