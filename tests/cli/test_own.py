"""``fencelog own`` as a script calls it: a command runs while it owns, and is stopped in time."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

import pytest

from fencelog.client.blocking import Client
from fencelog.types import TopicPartition
from tests.support.broker import BrokerProcess
from tests.support.cli import DEADLINE_S, Cli
from tests.support.waiting import wait_until

LOST, REFUSED, NO_COMMAND = 75, 77, 127
STUBBORN = "trap 'echo told' TERM; echo started $$; while :; do sleep 0.05; done"
SLEEPS = "echo started $$; exec sleep 1000"


@pytest.fixture
def cli(shared_broker: BrokerProcess) -> Cli:
    """The command line, pointed at the shared broker."""
    return Cli(shared_broker.address)


@pytest.fixture
def job(fresh_name: Callable[[str], str]) -> str:
    """A resource that no other test claims."""
    return fresh_name("job")


@contextmanager
def running(cli: Cli, *arguments: str) -> "Iterator[subprocess.Popen[str]]":
    """``fencelog own …`` in the background; killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-m", "fencelog", "own", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=cli.environment,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline().strip()


def started(process: "subprocess.Popen[str]") -> int:
    """The pid of the command, once it runs."""
    word, pid = line(process.stdout).split()
    assert word == "started"
    return int(pid)


def is_gone(pid: int) -> bool:
    """Whether a process has ended, also one that nobody has waited for."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_command_finds_its_grant_in_its_environment_and_its_status_is_passed_on(
    cli: Cli, job: str
) -> None:
    variables = "EPOCH GENERATION TOKEN TOKENS TRANSACTIONAL_ID".replace(" ", " $FENCELOG_OWN_")
    show = f"echo $FENCELOG_BOOTSTRAP_SERVERS $FENCELOG_OWN_{variables}; exit 7"
    named = ("--generation", "4", "--transactional-id", "copy", "--", "sh", "-c", show)
    done = cli.run("own", "claim", job, *named)
    assert done.returncode == 7
    address = cli.environment["FENCELOG_BOOTSTRAP_SERVERS"]
    tokens, own_id = json.dumps({job: 1}), "__fencelog.own//copy~"
    assert done.stdout.decode().startswith(f"{address} 1 4 1 {tokens} {own_id}")
    several = cli.out("own", "claim", job, f"{job}-2", "--", "sh", "-c", show.replace("exit 7", ""))
    tokens = json.dumps({job: 2, f"{job}-2": 1})
    assert several.decode() == f"{address} 2 5 {tokens}\n", "no single token, and no id"


def test_its_producer_writes_under_the_transactional_id_and_an_older_one_is_fenced(
    cli: Cli, topic: str
) -> None:  # O8
    cli.out("topic", "create", topic)
    named = ("--transactional-id", topic)
    python = shlex.quote(sys.executable)
    write = f"{python} -m fencelog topic produce {topic} -X transactional.id="
    script = f"echo $FENCELOG_OWN_TRANSACTIONAL_ID; echo a | {write}$FENCELOG_OWN_TRANSACTIONAL_ID"
    old = cli.out("own", "claim", f"{topic}/0", *named, "--", "sh", "-c", script).split()[0]
    with running(cli, "claim", f"{topic}/0", *named, "--", "sh", "-c", SLEEPS) as owner:
        started(owner)
        said = cli.refused(
            1, "topic", "produce", topic, "-X", f"transactional.id={old.decode()}", stdin=b"b"
        )
        assert "FENCED" in said
        assert "only its owner writes" in cli.refused(1, "topic", "produce", topic, stdin=b"c")
    assert cli.out("topic", "consume", topic, "-e", "-f", "%v\n") == b"a\n"


def test_a_claim_without_a_command_is_shown_and_held_until_it_is_interrupted(
    cli: Cli, topic: str
) -> None:
    cli.out("topic", "create", topic)
    name = f"{topic}/0"
    with running(cli, "claim", name, "--generation", "3") as owner:
        shown = json.loads(line(owner.stdout))
        assert shown["resources"] == [
            {"resource": name, "generation": 3, "epoch": 1, "fence_offset": 0}
        ]
        held, never = cli.json("own", "status", name, "nobodys")
        assert (held["state"], held["generation"], held["epoch"]) == ("held", 3, 1)
        assert held["holder"] == shown["holder"]
        assert held["group"] is None
        assert (never["resource"], never["state"], never["epoch"]) == ("nobodys", "free", None)
        said = cli.refused(REFUSED, "own", "claim", name, "--generation", "2")
        assert f"{name} is held by {shown['holder']} with generation 3 (epoch 1)" in said
        owner.send_signal(signal.SIGINT)
        assert owner.wait(DEADLINE_S) == 128 + signal.SIGINT
    (free,) = cli.json("own", "status", name)
    assert (free["state"], free["holder"], free["epoch"]) == ("free", None, 1)
    assert "generation 2" not in cli.refused(REFUSED, "own", "claim", name, "--generation", "2")


def test_a_command_is_stopped_with_its_group_when_a_later_attempt_takes_over(
    cli: Cli, job: str
) -> None:  # O1
    child = f'sh -c "{SLEEPS.replace("echo started $$; ", "")}" & echo started $!; wait'
    with running(cli, "claim", job, "--lease-ms", "1500", "--", "sh", "-c", child) as owner:
        pid = started(owner)
        cli.out("own", "claim", job, "--", "true")
        assert owner.wait(DEADLINE_S) == LOST
        assert owner.stderr is not None
        assert f"{job} was granted since (epoch 2, generation 2" in owner.stderr.read()
    wait_until(lambda: is_gone(pid), what="the end of the command's child")


def test_a_command_is_killed_before_the_lease_ends_when_the_broker_does_not_answer(
    broker: BrokerProcess, job: str
) -> None:  # O10
    cli = Cli(broker.address)
    with running(cli, "claim", job, "--lease-ms", "3000", "--", "sh", "-c", STUBBORN) as owner:
        pid = started(owner)
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            # Nobody can be granted the claim meanwhile: the claimant has stopped first.
            assert owner.wait(DEADLINE_S) == LOST
            assert is_gone(pid)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        assert line(owner.stdout) == "told", "SIGTERM comes before SIGKILL"
        assert owner.stderr is not None
        assert "no renewal was answered" in owner.stderr.read()


def test_who_waits_runs_its_command_once_the_owner_is_killed_and_the_owners_command_ends(
    cli: Cli, job: str
) -> None:  # O10
    command = ("--", "sh", "-c", SLEEPS)
    with running(cli, "claim", job, *command) as owner:
        pid = started(owner)
        with running(cli, "claim", job, "--wait", *command) as standby:
            assert line(standby.stderr) == "waiting, 0 claims before this one"
            with running(cli, "claim", job, "--wait", *command) as third:
                assert line(third.stderr) == "waiting, 1 claims before this one"
                owner.kill()
                started(standby)
                wait_until(lambda: is_gone(pid), what="the end of the killed one's command")
                (found,) = cli.json("own", "status", job)
                assert (found["epoch"], found["waiting"]) == (2, 1)
                third.send_signal(signal.SIGINT)
                assert third.wait(DEADLINE_S) == 128 + signal.SIGINT
            assert standby.poll() is None


def test_signals_are_passed_on_and_the_status_is_that_of_a_shell(cli: Cli, job: str) -> None:
    script = "trap 'exit 9' USR1; echo started $$; while :; do sleep 0.05; done"
    with running(cli, "claim", job, "--", "sh", "-c", script) as owner:
        started(owner)
        owner.send_signal(signal.SIGUSR1)
        assert owner.wait(DEADLINE_S) == 9
    with running(cli, "claim", job, "--", "sh", "-c", SLEEPS) as owner:
        pid = started(owner)
        owner.send_signal(signal.SIGTERM)
        assert owner.wait(DEADLINE_S) == 128 + signal.SIGTERM
    assert is_gone(pid)
    (free,) = cli.json("own", "status", job)
    assert (free["state"], free["epoch"]) == ("free", 2)


def test_what_cannot_run_or_is_asked_wrongly_is_told(cli: Cli, job: str) -> None:
    assert "no command nonesuch" in cli.refused(NO_COMMAND, "own", "claim", job, "--", "nonesuch")
    assert "missing after --" in cli.refused(2, "own", "claim", job, "--")
    assert "does not exist; create it first, or check the name" in cli.refused(
        4, "own", "claim", f"{job}/0"
    )
    nowhere = ("-b", "127.0.0.1:1", "--wait")
    assert "connection refused" in cli.refused(3, "own", "claim", job, *nowhere)


def test_a_groups_owner_is_shown_watched_and_released(
    cli: Cli, shared_broker: BrokerProcess, topic: str, fresh_name: Callable[[str], str]
) -> None:
    cli.out("topic", "create", topic)
    group, name = fresh_name("group"), f"{topic}/0"
    with running(cli, "watch", "-g", group, "--format", "json") as watcher:
        with Client(shared_broker.address) as client:
            claim = client.own(name, group=group)
            claim.commit_offsets({TopicPartition(topic, 0): 1})
            seen = [json.loads(line(watcher.stdout))]
            while seen[-1]["state"] != "held":
                seen.append(json.loads(line(watcher.stdout)))
            rows = cli.json("own", "status", "--all-groups")
            (row,) = (each for each in rows if each["group"] == group)
            assert row == seen[-1]
            assert [each["resource"] for each in cli.json("own", "status", "-g", group)] == [name]
            assert cli.json("own", "status", name)[0]["state"] == "free", "of another group"
            released = cli.json("own", "release", name, "other", "-g", group)
            assert released == [
                {"group": group, "resource": name, "epoch": 1, "released": True},
                {"group": group, "resource": "other", "epoch": None, "released": False},
            ]
            while seen[-1]["state"] != "free":
                seen.append(json.loads(line(watcher.stdout)))
        watcher.send_signal(signal.SIGINT)
        assert watcher.wait(DEADLINE_S) == 130
    table = cli.out("own", "status", "-g", group, "--format", "table").decode()
    assert "free" in table
