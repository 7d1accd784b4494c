"""Holds a claim, and runs a command while it is held: it is stopped before the lease is over."""

import asyncio
import ctypes
import json
import os
import signal
import subprocess
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

from fencelog.cli.output import ExitStatus, fail, say, show_line
from fencelog.client.asynchronous import Claim
from fencelog.client.cluster import Cluster, ClusterOptions
from fencelog.client.grants import OVER_PART, STOP_PART, ClaimOptions, Grant, Lease

PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SIGNALLED = 128
"""A shell's exit status of a program that a signal ended is this and its number."""
PR_SET_PDEATHSIG = 1


def kill_at_s(lease: Lease, told_s: float) -> float:
    """When a command that was told to stop is killed: before the lease is over.

    One whose ownership is lost earlier has the same time as one whose renewals fail.
    """
    return min(lease.over_at_s, told_s + lease.length_s * (OVER_PART - STOP_PART))


def environment(grant: Grant, cluster: ClusterOptions) -> dict[str, str]:
    """What the command finds in its environment, besides ours."""
    tokens = {name: owned.epoch for name, owned in grant.resources.items()}
    found = {
        "FENCELOG_BOOTSTRAP_SERVERS": cluster.bootstrap_servers,
        "FENCELOG_OWN_EPOCH": str(grant.highest.epoch),
        "FENCELOG_OWN_GENERATION": str(grant.highest.generation),
        "FENCELOG_OWN_TOKENS": json.dumps(tokens),
    }
    if len(tokens) == 1:
        found["FENCELOG_OWN_TOKEN"] = str(grant.highest.epoch)
    if grant.transactional_id is not None:
        found["FENCELOG_OWN_TRANSACTIONAL_ID"] = grant.transactional_id
    return found


async def hold(
    options: ClusterOptions, asked: ClaimOptions, command: Sequence[str] | None, *, waits: bool
) -> int:
    """Claim; hold the claim until a signal, or while the command runs. Returns the exit status.

    Raises ClaimRefusedError, OwnershipLostError, or another RequestError.
    """
    cluster = Cluster(options)
    claim = Claim(cluster, asked, _say_place, float("inf") if waits else 0.0)
    try:
        # A wrong address is told at once, also to one that waits without limit.
        await cluster.reach()
        async with claim:
            if command is None:
                return await _until_signal(claim)
            return await _run(claim, options, command)
    finally:
        await cluster.close()


def _say_place(place: int) -> None:
    say(f"waiting, {place} claims before this one")


async def _until_signal(claim: Claim) -> int:
    ended: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in ENDS:
        asyncio.get_running_loop().add_signal_handler(number, ended.put_nowait, number)
    show_line(shown(claim))
    lost, asked = asyncio.create_task(claim.lost.wait()), asyncio.create_task(ended.get())
    await asyncio.wait([lost, asked], return_when=asyncio.FIRST_COMPLETED)
    lost.cancel()
    if asked.done():
        return SIGNALLED + asked.result()
    asked.cancel()
    await claim.check()
    raise AssertionError("a claim that is lost says so")


def shown(claim: Claim) -> dict[str, object]:
    """The claim as one JSON object."""
    asked = claim.options
    return {
        "group": asked.group,
        "holder": asked.holder,
        "lease_ms": round(claim.lease_s * 1000),
        "transactional_id": claim.transactional_id,
        "resources": [
            {
                "resource": name,
                "generation": owned.generation,
                "epoch": owned.epoch,
                "fence_offset": claim.fence_offset(name),
            }
            for name, owned in claim.grant.resources.items()
        ],
    }


class Process:
    """A running command that leads a process group of its own.

    It is reaped only at ``end``: until then no other process or group can have its id.

    Attributes:
        exited: done once the command itself has ended.
    """

    def __init__(self, started: "subprocess.Popen[bytes]") -> None:
        """Watch it in the running event loop."""
        self._started = started
        self._pidfd = os.pidfd_open(started.pid)
        loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._pidfd, self._has_exited)

    def _has_exited(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        self.exited.set_result(None)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process group, if anything is left of it."""
        if self._started.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._started.pid, number)

    async def end(self) -> int:
        """Kill what is left of the group, and return the command's status, as ``Popen`` has it."""
        # What the command has left running must not act as an owner, either.
        self.send(signal.SIGKILL)
        await asyncio.wait([self.exited])
        os.close(self._pidfd)
        return self._started.wait()


async def _run(claim: Claim, options: ClusterOptions, command: Sequence[str]) -> int:
    """Run the command while the claim is held; its whole process group ends with it."""
    early: list[signal.Signals] = []
    process: Process | None = None

    def pass_on(number: signal.Signals) -> None:
        if process is None:
            early.append(number)
        else:
            process.send(number)

    for number in PASSED_ON:
        asyncio.get_running_loop().add_signal_handler(number, pass_on, number)
    # The command has the numbers of this grant, also if there is another one before it starts.
    grant = claim.grant
    process = _start(command, {**os.environ, **environment(grant, options)})
    for number in early:
        process.send(number)
    try:
        is_stopped = await _watch(claim, process, grant.transactional_id)
    finally:
        status = await process.end()
    if is_stopped:
        await claim.check()
        fail(
            ExitStatus.OWNERSHIP_LOST, "the command was stopped: the connection was lost for a time"
        )
    return SIGNALLED - status if status < 0 else status


def _start(command: Sequence[str], variables: Mapping[str, str]) -> Process:
    """Start the command in a process group of its own; it ends with this process."""
    libc, parent = ctypes.CDLL(None), os.getpid()

    def begin() -> None:
        # A command whose keeper was killed must not go on: nobody would stop it in time.
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(SIGNALLED + signal.SIGKILL)

    try:
        # asyncio's own subprocesses are reaped at once, and with them the id of the group is free.
        started = subprocess.Popen(  # noqa: S603  (the user's own command)
            command,
            env=variables,
            process_group=0,
            preexec_fn=begin,  # noqa: PLW1509 - it makes system calls only
        )
    except FileNotFoundError:
        fail(ExitStatus.NO_COMMAND, f"no command {command[0]}")
    except OSError as error:
        fail(ExitStatus.CANNOT_RUN, f"cannot run {command[0]}: {error.strerror}")
    return Process(started)


async def _watch(claim: Claim, process: Process, given: str | None) -> bool:
    """Return when the command has ended; whether it was stopped because ownership was lost.

    ``given``: the transactional id that the command has.
    """
    loop = asyncio.get_running_loop()
    told_s: float | None = None
    while not process.exited.done():
        now = loop.time()
        if told_s is None and (
            claim.lost.is_set()
            or now >= claim.lease.stop_at_s
            # The command's producer is fenced, by the claim after a lost connection.
            or claim.transactional_id != given
        ):
            told_s = now
            say("ownership is lost, or may be soon: stopping the command")
            process.send(signal.SIGTERM)
        if told_s is None:
            await _first(process.exited, claim.wait_change(), claim.lease.stop_at_s - now)
            continue
        left_s = kill_at_s(claim.lease, told_s) - now
        if left_s <= 0:
            process.send(signal.SIGKILL)
        await asyncio.wait([process.exited], timeout=left_s if left_s > 0 else None)
    return told_s is not None


async def _first(
    first: "asyncio.Future[None]", other: Coroutine[Any, Any, bool], wait_s: float
) -> None:
    """Wait for either of them, for so long at most."""
    beside = asyncio.create_task(other)
    both: list[asyncio.Future[Any]] = [first, beside]
    await asyncio.wait(both, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
    beside.cancel()
