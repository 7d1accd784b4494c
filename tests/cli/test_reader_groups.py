"""``fencelog stream group`` and ``fencelog stream read`` as a script calls them."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.broker import BrokerProcess
from tests.support.cli import DEADLINE_S, Cli
from tests.support.waiting import wait_until

KEYS = [b"key-%d" % number for number in range(8)]
PIPE_BYTES = 1 << 16
SHOWN = ("-f", "%k:%v\n")


@pytest.fixture
def cli(shared_broker: BrokerProcess) -> Cli:
    """The command line, pointed at the shared broker."""
    return Cli(shared_broker.address)


@pytest.fixture
def group(fresh_name: Callable[[str], str]) -> str:
    """A reader group that no other test uses."""
    return fresh_name("group")


@contextmanager
def reading(
    cli: Cli, stream: str, group: str, *arguments: str
) -> "Iterator[subprocess.Popen[bytes]]":
    """``fencelog stream read …`` in the background; killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-m", "fencelog", "stream", "read", stream, "-g", group, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=cli.environment,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def write(cli: Cli, stream: str, value: bytes) -> list[bytes]:
    """A record of each key."""
    lines = b"".join(b"%s:%s\n" % (key, value) for key in KEYS)
    cli.out("topic", "produce", stream, "-K", ":", "-X", "acks=all", stdin=lines)
    return lines.splitlines()


def values(lines: list[bytes], key: bytes) -> list[bytes]:
    return [line.partition(b":")[2] for line in lines if line.startswith(key + b":")]


def test_a_group_reads_each_key_in_order_over_splits_and_merges(  # R6, R8
    cli: Cli, topic: str, group: str
) -> None:
    cli.out("stream", "create", topic, "--segments", "2")
    write(cli, topic, b"first")
    cli.out("stream", "split", topic, "0")
    write(cli, topic, b"second")
    cli.out("stream", "merge", topic, "3", "1")
    write(cli, topic, b"third")
    created = cli.json("stream", "group", "create", group, "--stream", topic)
    assert created == [{"group": group, "stream": topic, "created": True}]
    seen = cli.out("stream", "read", topic, "-g", group, "-e", *SHOWN).splitlines()
    for key in KEYS:
        assert values(seen, key) == [b"first", b"second", b"third"]
    assert cli.out("stream", "read", topic, "-g", group, "-e", *SHOWN) == b"", "each event once"
    described = cli.json("stream", "group", "describe", group)
    assert (described["stream"], described["readers"]) == (topic, [])
    assert {each["segment"] for each in described["segments"]} == {2, 4}
    table = cli.out("stream", "group", "describe", group, "--format", "table").decode()
    assert "unassigned" in table
    listed = {row["group"]: row for row in cli.json("stream", "group", "list")}
    assert listed[group] == {"group": group, "stream": topic, "readers": 0, "finished": False}
    assert cli.json("stream", "group", "delete", group) == [{"group": group, "deleted": True}]
    assert group not in {row["group"] for row in cli.json("stream", "group", "list")}


def test_a_group_is_reset_to_a_cut_and_begins_at_one(  # R10
    cli: Cli, topic: str, group: str, tmp_path: Path
) -> None:
    cli.out("stream", "create", topic)
    write(cli, topic, b"before")
    cut = cli.out("stream", "cut", topic)
    file = tmp_path / "cut.json"
    file.write_bytes(cut)
    cli.out("stream", "split", topic, "0")
    after = sorted(write(cli, topic, b"after"))
    read = ("stream", "read", topic, "-e", *SHOWN, "-g")
    assert len(cli.out(*read, group).splitlines()) == 16
    for place in (str(file), cut.decode()):
        reset = cli.json("stream", "group", "reset", group, "--to", place)
        assert reset == [{"group": group, "segment": 0, "position": 8}]
        assert sorted(cli.out(*read, group).splitlines()) == after
    cli.out("stream", "group", "reset", group, "--to", "beginning")
    assert len(cli.out(*read, group, "-c", "5").splitlines()) == 5
    assert len(cli.out(*read, group).splitlines()) == 11
    cli.out("stream", "group", "reset", group, "--to", "end")
    assert cli.out(*read, group) == b""
    for number, (start, wanted) in enumerate((("-", after), ("end", []))):
        name = f"{group}-{number}"
        cli.out("stream", "group", "create", name, "--stream", topic, "--from", start, stdin=cut)
        assert sorted(cli.out(*read, name).splitlines()) == wanted


def test_readers_share_a_stream_and_one_that_is_told_to_end_leaves_its_part(  # R6, R9
    cli: Cli, topic: str, group: str
) -> None:
    cli.out("stream", "create", topic, "--segments", "4")

    def owners() -> dict[str, list[int]]:
        readers = cli.json("stream", "group", "describe", group)["readers"]
        return {each["reader"]: each["segments"] for each in readers}

    with reading(cli, topic, group, "--reader", "one") as one:
        assert one.stderr is not None
        assert b"was created" in one.stderr.readline()
        with reading(cli, topic, group, "--reader", "two", *SHOWN) as two:

            def shared() -> bool:
                return sorted(len(each) for each in owners().values()) == [2, 2]

            wait_until(shared, deadline_s=DEADLINE_S, what="two segments for each")
            one.send_signal(signal.SIGTERM)
            assert one.wait(DEADLINE_S) == 128 + signal.SIGTERM
            assert set(owners()) == {"two"}
            lines = sorted(write(cli, topic, b"for the other"))
            assert two.stdout is not None
            assert sorted(two.stdout.readline().strip() for _ in lines) == lines
            two.send_signal(signal.SIGINT)
            assert two.wait(DEADLINE_S) == 128 + signal.SIGINT
    assert owners() == {}


def test_a_reader_that_is_declared_offline_ends_and_says_so(  # R9
    cli: Cli, topic: str, group: str
) -> None:
    cli.out("stream", "create", topic)
    with reading(cli, topic, group, "--reader", "one") as one:

        def is_online() -> bool:
            (row,) = [
                each for each in cli.json("stream", "group", "list") if each["group"] == group
            ]
            return bool(row["readers"])

        assert one.stderr is not None
        assert b"was created" in one.stderr.readline()
        wait_until(is_online, deadline_s=DEADLINE_S, what="the reader")
        told = cli.json("stream", "group", "offline", group, "one")
        assert told == [{"group": group, "reader": "one", "was_online": True, "offline": True}]
        assert one.wait(DEADLINE_S) == 1
        assert b"error: reader one of group" in one.stderr.read()
    again = cli.json("stream", "group", "offline", group, "one")
    assert again[0]["was_online"] is False


def test_a_full_pipe_costs_a_reader_nothing(cli: Cli, topic: str, group: str) -> None:  # R6
    cli.out("stream", "create", topic)
    lines = b"".join(b"%d:%s\n" % (number, b"v" * 1000) for number in range(400))
    cli.out("topic", "produce", topic, "-K", ":", "-X", "acks=all", stdin=lines)
    with reading(cli, topic, group, "-e", *SHOWN) as one:
        assert one.stdout is not None
        first = one.stdout.readline()
        assert first + one.stdout.read() == lines
        assert one.wait(DEADLINE_S) == 0


def test_what_was_not_written_is_read_by_the_next_reader(  # R6
    cli: Cli, topic: str, group: str
) -> None:
    cli.out("stream", "create", topic)
    lines = b"".join(b"%d:%s\n" % (number, b"v" * 1000) for number in range(400))
    cli.out("topic", "produce", topic, "-K", ":", "-X", "acks=all", stdin=lines)
    with reading(cli, topic, group, *SHOWN) as one:
        assert one.stdout is not None
        first = one.stdout.readline()
        one.stdout.close()
        assert one.wait(DEADLINE_S) == 0, "whoever reads has closed the pipe"
    rest = cli.out("stream", "read", topic, "-g", group, "-e", *SHOWN)
    assert lines.startswith(first)
    assert lines.endswith(rest)
    assert len(lines) - len(rest) <= PIPE_BYTES, "what the pipe has taken counts as processed"


def test_what_cannot_be_done_is_refused_with_what_to_do(cli: Cli, topic: str, group: str) -> None:
    cli.out("stream", "create", topic)
    cli.out("stream", "create", f"{topic}-2")
    cli.out("stream", "group", "create", group, "--stream", topic)
    cli.out("stream", "group", "create", group, "--stream", topic)
    said = cli.refused(1, "stream", "group", "create", group, "--stream", f"{topic}-2")
    assert "exists with other settings" in said
    for verb in (("describe",), ("reset", "--to", "end"), ("offline", "one"), ("delete",)):
        said = cli.refused(4, "stream", "group", verb[0], f"{group}-none", *verb[1:])
        assert f"there is no reader group {group}-none" in said
        assert "`fencelog stream group list` shows the reader groups" in said
    assert "reads stream" in cli.refused(2, "stream", "read", f"{topic}-2", "-g", group)
    assert "there is no topic" in cli.refused(4, "stream", "read", f"{topic}-3", "-g", f"{group}-2")
    assert "--isolation tail" in cli.refused(
        2, "stream", "read", topic, "-g", group, "--isolation", "tail"
    )
    assert "expected 1 to 200 letters" in cli.refused(2, "stream", "read", topic, "-g", "a b")
    other = json.dumps(cli.json("stream", "cut", f"{topic}-2"))
    reset = ("stream", "group", "reset", group, "--to")
    assert "the cut is of stream" in cli.refused(2, *reset, other)
    assert "expected a stream cut" in cli.refused(2, *reset, "{}")
    assert "there is no checkpoint noon" in cli.refused(1, *reset, "noon")
    empty = {**cli.json("stream", "cut", topic), "segments": {}}
    assert "a stream cut has 1 to" in cli.refused(1, *reset, json.dumps(empty))
    said = cli.refused(
        2, "stream", "group", "create", f"{group}-3", "--stream", topic, "--from", "noon"
    )
    assert "expected beginning, end or a stream cut" in said
