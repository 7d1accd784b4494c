"""kcat as Debian has it, on librdkafka 2.0.2: the oldest client that is tried."""

import json
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fencelog.client.blocking import Client
from fencelog.types import TopicPartition
from tests.support.broker import BrokerProcess
from tests.support.stock import CODECS, Confluent
from tests.support.waiting import wait_until

DEADLINE_S = 30.0
MAGIC_AT, CODEC_AT = 16, 22
Kcat = Callable[..., str]


@pytest.fixture(scope="session")
def program(installed: Callable[[str], Path]) -> str:
    """The path of kcat."""
    return str(installed("kcat"))


@pytest.fixture
def kcat(program: str, clients_broker: BrokerProcess) -> Kcat:
    """Runs kcat to its end on the shared broker; returns what it wrote to stdout."""

    def run(*arguments: str, stdin: str = "") -> str:
        command = [program, "-b", clients_broker.address, *arguments]
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        return done.stdout

    return run


def _features(program: str) -> list[str]:
    """What librdkafka was built with, as kcat says."""
    told = subprocess.run([program, "-V"], capture_output=True, text=True, check=True).stdout
    return told.partition("builtin.features=")[2].partition(")")[0].split(",")


def envelopes(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.parametrize("codec", CODECS)
def test_batches_are_stored_in_the_format_and_codec_that_were_asked_for(
    kcat: Kcat, program: str, clients_broker: BrokerProcess, topic: str, codec: str
) -> None:
    if codec != "none" and codec not in _features(program):
        pytest.skip(f"{program} was built without {codec}")
    # librdkafka drops codecs without a word, and writes message sets of version 0, where a broker
    # advertises the wrong versions.
    lines = "".join(f"{'value' * 50} {number}\n" for number in range(100))
    kcat("-P", "-t", topic, "-p", "0", "-X", f"compression.codec={codec}", stdin=lines)
    log = Path(clients_broker.data_dir) / f"{topic}-0" / f"{0:020}.log"
    if not log.exists():
        (log,) = Path(clients_broker.data_dir).rglob(f"{topic}-0/{0:020}.log")
    stored = log.read_bytes()
    assert stored[MAGIC_AT] == 2
    assert stored[CODEC_AT] & 7 == CODECS.index(codec)
    assert kcat("-C", "-t", topic, "-e", "-q") == lines
    assert len(Confluent().read(clients_broker.address, topic)) == 100


def test_keys_headers_and_times_come_back(kcat: Kcat, topic: str) -> None:
    kcat("-P", "-t", topic, "-p", "0", "-K", ":", "-H", "one=1", "-H", "two=2", stdin="ada:hello\n")
    kcat("-P", "-t", topic, "-p", "0", "-Z", "-K", ":", stdin="ada:\n")
    first, second = envelopes(kcat("-C", "-t", topic, "-e", "-q", "-J"))
    assert (first["key"], first["payload"]) == ("ada", "hello")
    assert first["headers"] == ["one", "1", "two", "2"]
    assert (second["key"], second["payload"]) == ("ada", None)
    assert kcat("-Q", "-t", f"{topic}:0:{first['ts']}").strip() == f"{topic} [0] offset 0"
    (one,) = envelopes(kcat("-C", "-t", topic, "-e", "-q", "-J", "-o", f"s@{second['ts']}"))[-1:]
    assert one["offset"] == 1


def test_metadata_names_the_broker_and_the_partitions(
    kcat: Kcat, clients_broker: BrokerProcess, topic: str
) -> None:
    with Client(clients_broker.address) as admin:
        admin.create_topic(topic, 3)
    told = json.loads(kcat("-L", "-J", "-t", topic))
    assert [each["name"] for each in told["brokers"]] == [clients_broker.address]
    (about,) = told["topics"]
    assert [each["leader"] for each in about["partitions"]] == [1, 1, 1]


def test_a_transaction_commits_at_the_end_of_the_input_and_aborts_at_an_interrupt(  # E10
    kcat: Kcat,
    program: str,
    clients_broker: BrokerProcess,
    topic: str,
    fresh_name: Callable[[str], str],
) -> None:
    transactional = ["-P", "-t", topic, "-p", "0", "-X", f"transactional.id={fresh_name('id')}"]
    kcat(*transactional, stdin="kept\n")
    with subprocess.Popen(
        [program, "-b", clients_broker.address, *transactional, "-X", "linger.ms=0"],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as interrupted:
        assert interrupted.stdin is not None
        interrupted.stdin.write("aborted\n" * 20_000)  # it reads in large pieces
        interrupted.stdin.flush()
        with Client(clients_broker.address) as client:
            place = TopicPartition(topic, 0)
            wait_until(
                # After the record that was kept and its marker.
                lambda: client.offsets([place], "latest", isolation="replicated")[place] > 2,
                deadline_s=DEADLINE_S,
                what="the record that is to be aborted",
            )
        interrupted.send_signal(signal.SIGINT)
        interrupted.stdin.close()
    kcat(*transactional, stdin="kept too\n")
    assert kcat("-C", "-t", topic, "-e", "-q") == "kept\nkept too\n"
    everything = kcat("-C", "-t", topic, "-e", "-q", "-X", "isolation.level=read_uncommitted")
    assert everything.startswith("kept\naborted\n")


Consume = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def consume(program: str, clients_broker: BrokerProcess) -> Iterator[Consume]:
    """Starts a member of a group; whatever still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def begin(group: str, topic: str, *more: str) -> "subprocess.Popen[str]":
        started.append(member(program, clients_broker.address, group, topic, *more))
        return started[-1]

    yield begin
    for each in started:
        with each:
            each.kill()


def member(
    program: str, address: str, group: str, topic: str, *more: str
) -> "subprocess.Popen[str]":
    command = [program, "-b", address, "-u", "-J", "-X", "session.timeout.ms=3000"]
    command += ["-X", "heartbeat.interval.ms=200", "-X", "auto.offset.reset=earliest", *more]
    return subprocess.Popen(
        [*command, "-G", group, topic],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def test_a_group_shares_out_its_partitions_and_resumes(
    kcat: Kcat,
    consume: Consume,
    clients_broker: BrokerProcess,
    topic: str,
    fresh_name: Callable[[str], str],
) -> None:
    group = fresh_name("group")
    with Client(clients_broker.address) as admin:
        admin.create_topic(topic, 2)

        def spread(count: int) -> bool:
            if group not in {each.group for each in admin.list_groups()}:
                return False
            members = admin.describe_group(group).members
            shares = [len(member.partitions) for member in members]
            return len(members) == count and sum(shares) == 2 and all(shares)

        first = consume(group, topic)
        second = consume(group, topic)
        wait_until(lambda: spread(2), deadline_s=DEADLINE_S, what="two members with one each")
        kcat("-P", "-t", topic, "-p", "0", stdin="to zero\n")
        kcat("-P", "-t", topic, "-p", "1", stdin="to one\n")
        wait_until(
            lambda: sum(admin.committed_offsets(group).values()) == 2 or ended(first, second),
            deadline_s=DEADLINE_S,
            what="both offsets committed",
        )
        out = [leave(each) for each in (first, second)]
        assert sorted(sorted(each["payload"] for each in some) for some in out) == [
            ["to one"],
            ["to zero"],
        ]
        kcat("-P", "-t", topic, "-p", "0", stdin="after\n")
        again = consume(group, topic, "-c", "1")
        (only,) = envelopes(again.communicate(timeout=DEADLINE_S)[0])
        assert only["payload"] == "after"


def ended(*members: "subprocess.Popen[str]") -> bool:
    return any(each.poll() is not None for each in members)


def leave(member: "subprocess.Popen[str]") -> Sequence[dict[str, Any]]:
    """End it as a user does; what it read."""
    member.send_signal(signal.SIGINT)
    return envelopes(member.communicate(timeout=DEADLINE_S)[0])


def test_an_idempotent_producer_loses_and_duplicates_nothing_over_a_kill_of_the_broker(  # E13, E15
    program: str, mortal: BrokerProcess, topic: str
) -> None:
    with Client(mortal.address) as admin:
        admin.create_topic(topic, 1)
    command = [program, "-b", mortal.address, "-P", "-E", "-t", topic, "-p", "0"]
    command += ["-X", "enable.idempotence=true", "-X", "reconnect.backoff.max.ms=500"]
    values = [f"{number}" for number in range(40_000)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as kcat:
        assert kcat.stdin is not None
        kcat.stdin.write("".join(f"{value}\n" for value in values[:20_000]))
        kcat.stdin.flush()
        with Client(mortal.address) as client:
            place = TopicPartition(topic, 0)
            wait_until(
                lambda: client.offsets([place], "latest", isolation="replicated")[place] > 0,
                deadline_s=DEADLINE_S,
                what="a first record",
            )
        mortal.kill()
        kcat.stdin.write("".join(f"{value}\n" for value in values[20_000:]))
        mortal.start()
        kcat.stdin.close()
        assert kcat.wait(DEADLINE_S) == 0
    stored = Confluent().read(mortal.address, topic)
    assert [(each.value or b"").decode() for each in stored] == values
