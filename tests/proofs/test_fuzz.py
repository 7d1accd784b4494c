"""A slice of ``./dev prove fuzz``, and that its checks find what they must."""

import asyncio
import struct
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random

import pytest

from fencelog.broker.config import BrokerConfig
from fencelog.broker.network.time_slices import ITEMS_PER_SLICE
from fencelog.node import open_node
from fencelog.wire.api_versions import SUPPORTED
from fencelog.wire.primitives import Reader
from tests.proofs import _fuzz_heavy as heavy_part
from tests.proofs._fuzz_live import attack
from tests.proofs._fuzz_target import (
    ALLOCATED_AN_ITEM,
    ALLOCATED_PLAIN,
    Target,
    allocated,
    decode,
)
from tests.support.damage import KINDS, Damage, join, mutated, split
from tests.support.requests import KEYS_AND_VERSIONS, a_request

ROUNDS = 20
HEAVY_ITEMS = 2_000
TURNS_OF_ANY_REQUEST = 5
ONE_BY_ONE = (
    "alter_configs",
    "commit_transaction",
    "create_partitions",
    "create_topics",
    "delete_groups",
    "delete_records",
    "delete_topics",
    "describe_configs",
    "describe_groups",
    "describe_producers",
    "describe_transactions",
    "fetch",
    "find_coordinator",
    "incremental_alter_configs",
    "list_offsets",
    "metadata",
    "offset_commit",
    "offset_fetch",
    "offset_for_leader_epoch",
    "produce",
    "txn_offset_commit",
    "write_txn_markers",
)
"""Requests of which each thing that they name is looked at by itself; others do little with it."""
SEED = 20261121


def test_well_formed_requests_of_every_api_and_version_are_what_is_damaged() -> None:
    random = Random(SEED)
    for key, version in KEYS_AND_VERSIONS:
        for _ in range(3):
            decode(a_request(key, version, random))
    assert {key for key, _ in KEYS_AND_VERSIONS} == SUPPORTED.keys()


@pytest.mark.parametrize("kind", sorted(set(KINDS), key=lambda kind: kind.__name__))
def test_each_kind_of_damage_does_some(kind: Damage) -> None:
    random = Random(SEED)
    frames = [a_request(key, version, random) for key, version in KEYS_AND_VERSIONS]
    assert sum(kind(frame, random) != frame for frame in frames) > len(frames) / 3


def test_damaged_requests_of_every_api_and_version_get_an_answer_or_an_end(tmp_path: Path) -> None:
    random = Random(SEED)
    with Target(tmp_path) as target:
        for number in range(ROUNDS):
            for key, version in KEYS_AND_VERSIONS:
                stream = join([a_request(key, version, random)])
                for _ in range(random.choice((0, 1, 1, 2))):
                    stream = mutated(stream, random, 1 << 14)
                target.feed(stream, measured=number == 0)
    assert not target.findings, target.findings[0]
    spoken = [each for each in KEYS_AND_VERSIONS if target.tally.requests[each]]
    assert len(spoken) == len(KEYS_AND_VERSIONS)
    assert min(target.tally.answered, target.tally.closed) > 2 * len(KEYS_AND_VERSIONS)


@pytest.mark.parametrize("fault", ["raises", "lies"])
def test_the_target_finds_a_handler_that_fails(
    tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> object:
        if fault == "raises":
            raise KeyError("broken")
        return [b"\0\0\0\7", b"\xff\xff\xff"]

    with Target(tmp_path) as target:
        assert target._node is not None
        dispatch = target._node.server._dispatch
        key = 3
        _, low, high = dispatch._handlers[key]  # type: ignore[attr-defined]
        monkeypatch.setitem(dispatch._handlers, key, (broken, low, high))  # type: ignore[attr-defined]
        target.feed(
            join([a_request(*next(e for e in KEYS_AND_VERSIONS if e[0] == key), Random(1))])
        )
    expected = {"raises": "logged", "lies": "answer"}[fault]
    assert [each.kind for each in target.findings] == [expected]
    if fault == "raises":
        assert "KeyError: 'broken'" in target.findings[0].text


def test_the_target_finds_an_allocation_that_no_bytes_stand_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Reader.array_length

    def eager(self: Reader, flexible: bool, item_bytes_min: int = 1) -> int:
        bytearray(1 << 20)
        return honest(self, flexible, item_bytes_min)

    monkeypatch.setattr(Reader, "array_length", eager)
    with Target(tmp_path) as target:
        key = next(each for each in KEYS_AND_VERSIONS if each[0] == 19)
        target.feed(join([a_request(*key, Random(1))]), measured=True)
    assert [each.kind for each in target.findings] == ["memory"]


def test_decoding_takes_no_more_than_the_items_of_a_request_do() -> None:
    over = {}
    for heavy in heavy_part.heavies(1_000):
        peak, items = allocated(heavy.frame)
        bound = len(heavy.frame) + ALLOCATED_PLAIN + ALLOCATED_AN_ITEM * items
        if peak > bound:
            over[heavy.name] = (peak, bound)
    assert not over


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Counts the iterations of asyncio's loop from here on."""
    counter = count()
    base = asyncio.base_events.BaseEventLoop
    inner = base._run_once  # type: ignore[attr-defined]

    def run_once(loop: asyncio.BaseEventLoop) -> None:
        next(counter)
        inner(loop)

    monkeypatch.setattr(base, "_run_once", run_once)
    return counter


def test_a_long_request_is_handled_in_time_slices(tmp_path: Path, turns: Iterator[int]) -> None:
    async def scenario() -> dict[str, int]:
        taken: dict[str, int] = {}
        config = BrokerConfig(data_dir=str(tmp_path), port=0, durability="os")
        async with open_node(config) as node:
            controller = node.broker.controller
            await controller.create_topic(heavy_part.WIDE, heavy_part.PARTITIONS, {})
            await controller.create_topic("compacted", 1, {"cleanup.policy": "compact"})
            for heavy in heavy_part.heavies(HEAVY_ITEMS):
                _, writer = connection = await asyncio.open_connection(*node.address)
                began = next(turns)
                writer.write(join([heavy.frame]))
                await answered(connection[0])
                api = heavy.name.partition(" ")[0]
                taken[api] = max(next(turns) - began, taken.get(api, 0))
                writer.close()
        return taken

    taken = asyncio.run(scenario())
    wanted = HEAVY_ITEMS // ITEMS_PER_SLICE + TURNS_OF_ANY_REQUEST
    held = {api: taken.get(api) for api in ONE_BY_ONE if taken.get(api, 0) < wanted}
    assert not held, f"fewer than {wanted} turns: {held}"


async def answered(reader: asyncio.StreamReader) -> bytes:
    """An answer; empty where the connection was closed instead."""
    async with asyncio.timeout(30):
        try:
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            return await reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return b""


def test_attackers_over_sockets_keep_no_bystander_waiting(tmp_path: Path) -> None:
    live = attack(tmp_path, seconds=3, seed=SEED, threads=2, items=1_000)
    assert live.sent["damaged"] > 0
    assert all(live.attacked.values())
    assert not live.wrong_answers
    assert not live.wrong, live.wrong


def test_a_stream_is_cut_into_the_frames_that_it_was_joined_of() -> None:
    frames = [b"", b"a", b"bc" * 100]
    assert split(join(frames)) == frames
    assert split(join(frames) + b"\0\0\0\5ab") == [*frames, b"ab"]
