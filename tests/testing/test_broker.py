"""The plugin's broker: what a kill leaves and breaks, what a hold holds, what it says of misuse."""

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from operator import le
from pathlib import Path

import pytest

from fencelog.client.blocking import Client
from fencelog.coordination.shard import partition_for
from fencelog.errors import FencelogError, RequestError
from fencelog.testing import LocalBroker
from tests.support.waiting import wait_until

pytest_plugins = ["fencelog.testing"]

DEADLINE_S = 20.0
INTERNAL_PARTITIONS = 16
API_VERSIONS_V0 = struct.pack(">ihhih", 10, 18, 0, 1, -1)


def write(address: str, topic: str, value: bytes, **how: str) -> None:
    with Client(address, **how) as client, client.producer() as producer:
        producer.send(topic, value)


def values(broker: LocalBroker, topic: str) -> list[bytes | None]:
    return [record.value for record in broker.records(topic)]


def address_of(broker: LocalBroker) -> tuple[str, int]:
    host, port = broker.bootstrap.split(":")
    return host, int(port)


def stored(folder: Path) -> dict[str, bytes]:
    # Not the metadata: closing SQLite moves what it has stored from one of its files to another.
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "sqlite" not in path.name
    }


def test_a_kill_leaves_the_files_as_they_are_and_no_mark_of_a_clean_stop(
    fencelog_broker: LocalBroker,
) -> None:
    fencelog_broker.create_topic("orders")
    write(fencelog_broker.bootstrap, "orders", b"one")
    before = stored(fencelog_broker.data_dir)
    fencelog_broker.kill()
    assert stored(fencelog_broker.data_dir) == before
    fencelog_broker.start()
    assert values(fencelog_broker, "orders") == [b"one"]


def test_a_kill_breaks_every_connection_and_refuses_new_ones(fencelog_broker: LocalBroker) -> None:
    with socket.create_connection(address_of(fencelog_broker), DEADLINE_S) as silent:
        with Client(fencelog_broker.bootstrap) as client:
            client.topics()  # accepted after the one that sends nothing
        fencelog_broker.kill()
        with contextlib.suppress(ConnectionResetError):
            assert silent.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address_of(fencelog_broker), DEADLINE_S)


def test_while_it_is_killed_no_other_process_gets_its_port(fencelog_broker: LocalBroker) -> None:
    fencelog_broker.kill()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(address_of(fencelog_broker))
    address = fencelog_broker.bootstrap
    fencelog_broker.start()
    assert fencelog_broker.bootstrap == address


def test_a_kill_keeps_what_was_not_sent_from_a_slow_reader(fencelog_broker: LocalBroker) -> None:
    many = 40_000
    fencelog_broker.create_topic("orders")
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(DEADLINE_S)
        slow.connect(address_of(fencelog_broker))
        slow.sendall(API_VERSIONS_V0)
        answer_bytes = 4 + int.from_bytes(slow.recv(4, socket.MSG_WAITALL), "big")
        slow.recv(answer_bytes - 4, socket.MSG_WAITALL)
        slow.sendall(API_VERSIONS_V0 * many)
        for _ in range(10):
            fencelog_broker.records("orders")  # the broker reads from both alternately
        fencelog_broker.kill()
        got = 0
        with contextlib.suppress(ConnectionResetError):
            while some := slow.recv(1 << 20):
                got += len(some)
    assert got < many * answer_bytes


def test_restarts_leave_neither_threads_nor_descriptors(
    tmp_path: Path, fresh_name: Callable[[str], str]
) -> None:
    def one_life() -> tuple[int, int]:
        with LocalBroker(tmp_path / fresh_name("data")) as broker:
            broker.create_topic("orders")
            write(broker.bootstrap, "orders", b"one")
            broker.restart()
            assert values(broker, "orders") == [b"one"]
        return left_open()

    def left_open() -> tuple[int, int]:
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    before = one_life()
    one_life()
    # The last threads of a pool end a moment after it.
    wait_until(lambda: all(map(le, left_open(), before)), what="as many as before")


def test_what_a_broker_does_after_its_kill_is_refused_in_words(tmp_path: Path) -> None:
    broker = LocalBroker(tmp_path)
    with pytest.raises(FencelogError, match="not running"):
        broker.create_topic("orders")
    with broker:
        assert broker.running
        with pytest.raises(FencelogError, match="kill it first"):
            broker.start()
    assert not broker.running
    broker.close()


def test_a_directory_that_cannot_be_used_says_so_and_leaves_no_thread(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    before = set(threading.enumerate())
    broker = LocalBroker(tmp_path / "data")
    with pytest.raises(FencelogError, match="data"):
        broker.start()
    broker.close()

    def none_left() -> bool:
        new = set(threading.enumerate()) - before
        return not any(thread.name.startswith("fencelog-") for thread in new)

    wait_until(none_left, what="the end of the broker's threads")


def test_what_is_decided_is_settled_once_its_markers_are_in_the_log(
    fencelog_broker: LocalBroker,
) -> None:
    node = fencelog_broker._node
    assert node is not None

    async def decide_and_settle() -> bool:
        assert await node.expire_transaction("shop")
        await node.settled()
        partition = node._node.broker.logs.get("orders", 0)
        assert partition is not None
        return partition.log.last_stable_offset == partition.log.log_end_offset == 2

    fencelog_broker.create_topic("orders")
    with Client(fencelog_broker.bootstrap) as client:
        producer = client.producer(transactional_id="shop")
        producer.begin()
        producer.send("orders", b"one tea")
        producer.flush()
        assert node.run(decide_and_settle())
        producer.close()


def test_only_the_named_transaction_expires(fencelog_broker: LocalBroker) -> None:
    names = (f"shop-{number}" for number in count())
    in_one_shard = (each for each in names if partition_for(each, INTERNAL_PARTITIONS) == 0)
    first, second = next(in_one_shard), next(in_one_shard)
    with Client(fencelog_broker.bootstrap) as client:
        fencelog_broker.create_topic("orders", 2)
        producers = [client.producer(transactional_id=each) for each in (first, second)]
        for partition, producer in enumerate(producers):
            producer.begin()
            producer.send("orders", b"%d" % partition, partition=partition)
            producer.flush()
        fencelog_broker.expire_transaction(first)
        with pytest.raises(FencelogError, match="no open transaction"):
            fencelog_broker.expire_transaction(first)
        producers[1].commit()
        for producer in producers:
            producer.close()
    assert values(fencelog_broker, "orders") == [b"1"]


def test_a_member_that_is_expired_commits_nothing_more(  # E8
    fencelog_broker: LocalBroker,
) -> None:
    from confluent_kafka import Consumer, KafkaError, KafkaException

    fencelog_broker.create_topic("orders")
    write(fencelog_broker.bootstrap, "orders", b"one")
    stalled = Consumer(
        {
            "bootstrap.servers": fencelog_broker.bootstrap,
            "group.id": "shop",
            "client.id": "stalled",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    stalled.subscribe(["orders"])
    message = stalled.poll(DEADLINE_S)
    with (
        ThreadPoolExecutor(1) as beside,
        fencelog_broker.hold("OffsetCommit", client_id="stalled") as held,
    ):
        late = beside.submit(stalled.commit, message, asynchronous=False)
        held.wait()
        fencelog_broker.expire_member("shop", "stalled")
        held.release()
        with pytest.raises(KafkaException) as refused:
            late.result(DEADLINE_S)
    stalled.close()
    assert refused.value.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID
    with Client(fencelog_broker.bootstrap) as client:
        assert client.committed_offsets("shop") == {}
    with pytest.raises(FencelogError, match="shop has no member"):
        fencelog_broker.expire_member("shop", "nobody")


def test_an_unknown_transactional_id_fences_no_producer(fencelog_broker: LocalBroker) -> None:
    with pytest.raises(RequestError, match="TRANSACTIONAL_ID_NOT_FOUND"):
        fencelog_broker.fence("nobody")
    with pytest.raises(FencelogError, match="nobody has no open transaction"):
        fencelog_broker.expire_transaction("nobody")


def test_a_hold_of_one_client_leaves_the_others_alone(fencelog_broker: LocalBroker) -> None:
    fencelog_broker.create_topic("orders")
    address = fencelog_broker.bootstrap
    with ThreadPoolExecutor(1) as beside:
        with fencelog_broker.hold("Produce", client_id="slow") as held:
            slow = beside.submit(write, address, "orders", b"slow", client_id="slow")
            held.wait()
            write(address, "orders", b"quick", client_id="quick")
            assert values(fencelog_broker, "orders") == [b"quick"]
        slow.result(DEADLINE_S)
    assert values(fencelog_broker, "orders") == [b"quick", b"slow"]


def test_a_held_request_arrives_even_if_its_sender_has_died(fencelog_broker: LocalBroker) -> None:
    fencelog_broker.create_topic("orders")
    with fencelog_broker.hold("Produce") as held:
        client = Client(fencelog_broker.bootstrap)
        producer = client.producer()
        producer.send("orders", b"last words")
        with ThreadPoolExecutor(1) as beside:
            sending = beside.submit(producer.flush)
            held.wait()
            client.close()
            assert sending.exception(DEADLINE_S) is not None
        assert values(fencelog_broker, "orders") == []
        held.release()
    wait_until(lambda: values(fencelog_broker, "orders") == [b"last words"], what="it arrives")


def test_what_was_held_at_a_kill_is_lost_and_comes_again(fencelog_broker: LocalBroker) -> None:
    fencelog_broker.create_topic("orders")
    with ThreadPoolExecutor(1) as beside, fencelog_broker.hold("Produce") as held:
        sending = beside.submit(write, fencelog_broker.bootstrap, "orders", b"one")
        held.wait()
        fencelog_broker.restart()
        assert values(fencelog_broker, "orders") == []
        held.wait(2)  # the retry is held as well
        held.release()
        sending.result(DEADLINE_S)
    assert values(fencelog_broker, "orders") == [b"one"]


@pytest.mark.parametrize(
    ("misuse", "words"),
    [
        (
            lambda broker: broker.hold("Prduce").__enter__(),
            "'Prduce' is not a request; known: Produce, Fetch",
        ),
        (lambda broker: broker.records("nothing"), "UNKNOWN_TOPIC_OR_PARTITION"),
    ],
    ids=["no such request", "no such topic"],
)
def test_misuse_is_named(
    fencelog_broker: LocalBroker, misuse: Callable[[LocalBroker], object], words: str
) -> None:
    with pytest.raises((ValueError, RequestError), match=words):
        misuse(fencelog_broker)


def test_a_hold_that_no_request_meets_names_what_it_waited_for(
    fencelog_broker: LocalBroker,
) -> None:
    with (
        fencelog_broker.hold("EndTxn") as held,
        pytest.raises(TimeoutError, match="0 of 1 EndTxn"),
    ):
        held.wait(timeout_s=0.01)
