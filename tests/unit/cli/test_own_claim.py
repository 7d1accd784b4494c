"""When a command that runs under a claim is stopped, and what it finds in its environment."""

import asyncio
import dataclasses
import os
import signal
from collections.abc import Mapping, Sequence

import pytest

from fencelog.cli import own_claim
from fencelog.cli.output import ExitStatus
from fencelog.cli.own_claim import Process, environment, kill_at_s
from fencelog.client.asynchronous import Claim
from fencelog.client.cluster import Cluster, ClusterOptions
from fencelog.client.grants import ClaimOptions, Grant, Lease, Owned

OPTIONS = ClusterOptions(bootstrap_servers="a:1,b:2")


class Granted(Claim):
    """A claim that has been granted, without a broker."""

    def __init__(self, granted: Grant) -> None:
        super().__init__(Cluster(OPTIONS), ClaimOptions(resources=("x",)), None, 0.0)
        self._grant = granted
        self._lease = Lease(asyncio.get_running_loop().time(), 1000.0)

    async def check(self) -> None:
        """It is held."""


def test_a_command_is_killed_before_the_lease_is_over() -> None:  # O10
    lease = Lease(sent_s=100.0, length_s=9.0)
    assert kill_at_s(lease, lease.stop_at_s) == pytest.approx(lease.over_at_s)
    assert kill_at_s(lease, 107.0) == lease.over_at_s < 109.0
    assert kill_at_s(lease, 101.0) == pytest.approx(103.1), "it was lost before: no longer"


def test_a_token_is_given_for_one_resource_and_all_tokens_for_several() -> None:
    one = Owned(generation=3, epoch=7, fence_offset=1)
    grant = Grant(session="s", lease_s=9.0, transactional_id="t~1", resources={"x": one})
    assert environment(grant, OPTIONS) == {
        "FENCELOG_BOOTSTRAP_SERVERS": "a:1,b:2",
        "FENCELOG_OWN_EPOCH": "7",
        "FENCELOG_OWN_GENERATION": "3",
        "FENCELOG_OWN_TOKEN": "7",
        "FENCELOG_OWN_TOKENS": '{"x": 7}',
        "FENCELOG_OWN_TRANSACTIONAL_ID": "t~1",
    }
    other = Owned(generation=1, epoch=2, fence_offset=-1)
    both = Grant(session="s", lease_s=9.0, transactional_id=None, resources={"x": one, "y": other})
    found = environment(both, OPTIONS)
    assert found["FENCELOG_OWN_TOKENS"] == '{"x": 7, "y": 2}'
    assert not {"FENCELOG_OWN_TOKEN", "FENCELOG_OWN_TRANSACTIONAL_ID"} & found.keys()


async def test_a_command_that_starts_with_the_id_of_an_earlier_grant_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owned = {"x": Owned(generation=3, epoch=7, fence_offset=-1)}
    first = Grant(session="s", lease_s=9.0, transactional_id="t~7", resources=owned)
    claim, start = Granted(first), own_claim._start

    def claimed_again_meanwhile(command: Sequence[str], variables: Mapping[str, str]) -> Process:
        claim._grant = dataclasses.replace(first, transactional_id="t~8")
        return start(command, variables)

    monkeypatch.setattr(own_claim, "_start", claimed_again_meanwhile)
    async with asyncio.timeout(20):
        with pytest.raises(SystemExit) as ended:
            await own_claim._run(claim, OPTIONS, ["sleep", "1000"])
    assert ended.value.code == ExitStatus.OWNERSHIP_LOST


async def test_no_signal_goes_to_a_group_whose_id_may_be_anothers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[tuple[int, bool]] = []

    def killpg(group: int, number: int) -> None:
        sent.append((number, os.path.exists(f"/proc/{group}")))

    monkeypatch.setattr(os, "killpg", killpg)
    process = own_claim._start(["sh", "-c", "exit 7"], os.environ)
    async with asyncio.timeout(20):
        await process.exited
        assert await process.end() == 7
    assert sent == [(signal.SIGKILL, True)], "not reaped yet"
    process.send(signal.SIGUSR1)
    assert len(sent) == 1
