"""Claims of our own client against a broker process: takeover, zombies, lost connections."""

import ast
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import confluent_kafka
import pytest

import fencelog
import fencelog.aio
from fencelog.client.blocking import Client
from fencelog.client.blocking_writers import Producer
from fencelog.client.model import Delivery
from fencelog.errors import ClaimRefusedError, ErrorCode, OwnershipLostError, RequestError
from fencelog.types import TopicPartition
from fencelog.wire.api_versions import ApiKey
from tests.support.broker import BrokerProcess
from tests.support.proxy import Action, FrameProxy, Request
from tests.support.waiting import wait_until

ROOT = Path(__file__).parent.parent.parent
Proxied = Callable[[Callable[[Request], Action]], FrameProxy]
ENDS_AT_A_LINE = "echo started; read line; exit 9"
LONG_S = 60.0
"""A lease that does not end in a test, however slow the machine is."""


@pytest.fixture
def log(shared_broker: BrokerProcess) -> Iterator[Client]:
    with fencelog.connect(shared_broker.address) as client:
        yield client


@pytest.fixture
def place(log: Client, topic: str) -> TopicPartition:
    log.create_topic(topic, 2)
    return TopicPartition(topic, 0)


def resource(place: TopicPartition) -> str:
    return f"{place.topic}/{place.partition}"


def values(log: Client, place: TopicPartition) -> list[bytes | None]:
    (end,) = log.offsets([place], "latest").values()
    return [each.value for each in log.fetch(place, 0, end)] if end else []


def write(producer: Producer, place: TopicPartition, value: bytes) -> list[Delivery]:
    producer.send(place.topic, value, partition=place.partition)
    return producer.flush()


def test_a_claim_owns_writes_until_a_later_attempt_takes_over(
    log: Client, place: TopicPartition
) -> None:  # O1, O3, O4, O8, O9
    name = resource(place)
    with log.own(name, generation=5) as claim:
        producer, other = claim.producer(), log.producer()
        assert (claim.generation, claim.epoch, claim.token(name)) == (5, 1, 1)
        with claim.guard():
            (delivery,) = write(producer, place, b"first")
        assert claim.fence_offset(name) == 0
        assert delivery.base_offset == 1
        with pytest.raises(ClaimRefusedError, match="generation 5"):
            log.own(name, generation=4)
        with pytest.raises(RequestError, match="only its owner writes"):
            write(other, place, b"of nobody")
        assert not claim.lost.is_set()
        with log.own(name, generation=5) as later:
            assert claim.lost.wait(10)
            assert later.epoch == 2
            with pytest.raises(OwnershipLostError, match="epoch 2, generation 5"), claim.guard():
                raise AssertionError("the block of a lost claim does not run")
            with pytest.raises(OwnershipLostError):
                write(producer, place, b"of a zombie")
            (found,) = log.describe_ownership([name])
            assert (found.state, found.generation, found.epoch) == ("held", 5, 2)
    (found,) = log.describe_ownership([name])
    assert (found.state, found.holder, found.epoch) == ("free", None, 2)
    assert values(log, place) == [b"first"]


def test_a_claims_transactional_id_writes_and_an_older_ones_transaction_is_aborted(
    log: Client, place: TopicPartition
) -> None:  # O8
    name = resource(place)
    with log.own(name, transactional_id="copy") as claim:
        producer = claim.producer(transactional=True)
        producer.begin()
        producer.send(place.topic, b"committed", partition=0)
        producer.commit()
        producer.begin()
        producer.send(place.topic, b"open", partition=0)
        producer.flush()
        with log.own(name, transactional_id="copy") as later:
            assert later.transactional_id != claim.transactional_id
            with pytest.raises(OwnershipLostError):
                producer.commit()
            assert values(log, place) == [b"committed"]


def test_a_groups_owner_commits_its_offsets_and_nobody_else(
    log: Client, place: TopicPartition, fresh_name: Callable[[str], str]
) -> None:  # O8
    group = fresh_name("group")
    with log.own(resource(place), group=group) as claim:
        claim.commit_offsets({place: 7})
        with pytest.raises(RequestError):
            log.commit_offsets(group, {place: 3})
        with log.own(resource(place), group=group) as later:
            with pytest.raises(OwnershipLostError):
                claim.commit_offsets({place: 4})
            assert later.committed_offsets() == {place: 7}
            later.commit_offsets({place: 8})
    assert log.committed_offsets(group) == {place: 8}


def test_a_lost_connection_claims_again_and_severs_nobody(
    proxied: Proxied, topic: str
) -> None:  # O5
    proxy = proxied(lambda _: Action.FORWARD)
    place = TopicPartition(topic, 0)
    with fencelog.connect(proxy.address) as log:
        log.create_topic(topic, 1)
        with log.own(resource(place), generation=3, lease_s=LONG_S) as claim:
            producer = claim.producer()
            for value in (b"before", b"after"):
                with claim.guard():
                    write(producer, place, value)
                if value == b"before":
                    proxy.cut()
                    wait_until(lambda: claim.epoch == 2, what="another grant")
            assert (claim.generation, claim.token(resource(place))) == (3, 2)
            assert not claim.lost.is_set()
        assert values(log, place) == [b"before", b"after"]


def test_a_command_ends_whose_transactional_id_is_replaced_after_a_lost_connection(
    proxied: Proxied, fresh_name: Callable[[str], str]
) -> None:  # O8
    proxy = proxied(lambda _: Action.FORWARD)
    claim = ("own", "claim", fresh_name("job"), "--lease-ms", str(int(LONG_S * 1000)))
    for named, status in ((("--transactional-id", "copy"), 75), ((), 9)):
        with subprocess.Popen(
            [sys.executable, "-m", "fencelog", *claim, *named, "--", "sh", "-c", ENDS_AT_A_LINE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "FENCELOG_BOOTSTRAP_SERVERS": proxy.address},
        ) as owner:
            assert owner.stdin is not None
            assert owner.stdout is not None
            assert owner.stdout.readline() == b"started\n"
            proxy.cut()
            if not named:
                owner.stdin.write(b"\n")
                owner.stdin.flush()
            assert owner.wait(30) == status


def test_who_comes_back_after_a_takeover_is_fenced_and_severs_nobody(
    proxied: Proxied, topic: str
) -> None:  # O5
    proxy = proxied(lambda _: Action.FORWARD)
    with fencelog.connect(proxy.address) as log:
        log.create_topic(topic, 1)
        claim = log.own(f"{topic}/0", lease_s=LONG_S)
        proxy.decide = lambda each: Action.HOLD if each.api_key == ApiKey.OWN else Action.FORWARD
        proxy.cut()
        wait_until(lambda: proxy.held, what="its second claim")
        proxy.decide = lambda _: Action.FORWARD
        with log.own(f"{topic}/0", lease_s=LONG_S) as successor:
            assert successor.epoch == 2
            proxy.release()
            assert claim.lost.wait(10)
            with pytest.raises(OwnershipLostError, match="epoch 2"):
                claim.check()
            successor.check()
            assert not successor.lost.is_set()


ZOMBIE = """
import json, sys
import fencelog
from fencelog.errors import FencelogError

address, name, topic = sys.argv[1:]
with fencelog.connect(address) as log:
    claim = log.own(name, lease_s=3.0)
    producer = claim.producer()

    def write(value):
        producer.send(topic, value, partition=0)
        producer.flush()

    def guarded():
        with claim.guard():
            return "ran"

    write(b"alive")
    print("owns", flush=True)
    for act in (lambda: write(b"zombie"), guarded, lambda: log.own(name, generation=1).epoch):
        sys.stdin.readline()
        try:
            print(json.dumps([act()]), flush=True)
        except FencelogError as error:
            print(json.dumps(type(error).__name__), flush=True)
"""


def test_a_claimant_that_was_stopped_beyond_its_lease_writes_nothing_when_it_goes_on(
    shared_broker: BrokerProcess, log: Client, place: TopicPartition
) -> None:  # O7, O8, O10
    name = resource(place)
    command = [sys.executable, "-c", ZOMBIE, shared_broker.address, name, place.topic]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as zombie:
        assert zombie.stdin is not None
        assert zombie.stdout is not None
        try:
            assert zombie.stdout.readline() == "owns\n"
            zombie.send_signal(signal.SIGSTOP)
            with log.own(name, wait=30.0, generation=2) as successor:
                assert successor.epoch == 2
                with successor.producer() as producer:
                    producer.send(place.topic, b"successor", partition=0)
                zombie.send_signal(signal.SIGCONT)
                answers = []
                for _ in range(3):
                    zombie.stdin.write("\n")
                    zombie.stdin.flush()
                    answers.append(json.loads(zombie.stdout.readline()))
                successor.check()
            assert answers == ["OwnershipLostError", "OwnershipLostError", "ClaimRefusedError"]
            assert values(log, place) == [b"alive", b"successor"]
        finally:
            zombie.kill()


def test_a_claim_outlives_a_restart_of_the_broker(
    broker: BrokerProcess, topic: str
) -> None:  # O5, O10
    with fencelog.connect(broker.address) as log:
        log.create_topic(topic, 1)
        with log.own(f"{topic}/0", lease_s=LONG_S) as claim:
            producer = claim.producer()
            broker.restart()
            claim.check()
            assert claim.epoch == 2
            assert len(write(producer, TopicPartition(topic, 0), b"after")) == 1


def test_one_that_waits_is_granted_when_the_owner_is_gone(
    shared_broker: BrokerProcess, place: TopicPartition
) -> None:  # O10
    name = resource(place)
    places: list[int] = []

    async def hold() -> dict[str, Any]:
        told = asyncio.Event()

        def tell(before: int) -> None:
            places.append(before)
            told.set()

        async with await fencelog.aio.connect(shared_broker.address) as log:
            seen: dict[str, Any] = {}
            async with log.own(name) as first:

                async def wait() -> None:
                    async with log.own(name, wait=True, on_waiting=tell) as second:
                        seen["epoch"] = second.epoch
                        async with second.guard(), await second.producer() as producer:
                            await producer.send(place.topic, b"second", partition=0)
                        seen["records"] = [r.value async for r in second.fetch(place, 0, 3)]

                waiting = asyncio.create_task(wait())
                await told.wait()
                await first.check()
            await waiting
            seen["states"] = [each.state for each in await log.describe_ownership([name])]
            return seen

    seen = asyncio.run(hold())
    assert seen == {"epoch": 2, "records": [b"second"], "states": ["free"]}
    assert places == [0]


def test_a_claim_of_what_does_not_exist_is_refused(log: Client, topic: str) -> None:
    with pytest.raises(RequestError) as refused:
        log.own(f"{topic}/0")
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert f"{topic}/0" in str(refused.value)


def test_the_guides_examples_run_as_they_are_printed(broker: BrokerProcess) -> None:
    guide = (ROOT / "docs/guide/ownership.md").read_text(encoding="utf-8")
    first, asynchronous, stock = (
        block.replace("localhost:9092", broker.address)
        for block in re.findall(r"^```python\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    )
    with fencelog.connect(broker.address) as log:
        log.create_topic("orders", 2)
        exec(first, {})
        code = compile(asynchronous, "guide", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        names = {"fencelog": fencelog, "copy_one_table": lambda: asyncio.sleep(0)}
        asyncio.run(FunctionType(code, names)())
        exec(stock, {"log": log, "confluent_kafka": confluent_kafka})
        assert values(log, TopicPartition("orders", 0)) == [b"mine alone"]


def test_watching_shows_what_is_and_then_what_changes(
    log: Client, fresh_name: Callable[[str], str]
) -> None:
    job = fresh_name("job")
    seen = log.watch_ownership([job])
    assert next(seen) == []
    with log.own(job):
        (held,) = next(seen)
        assert (held.resource, held.epoch) == (job, 1)
    states = {held.state}
    while "free" not in states:
        states |= {each.state for each in next(seen)}
    with log.own(job):
        assert [each.resource for each in log.release_ownership([job])] == [job]
