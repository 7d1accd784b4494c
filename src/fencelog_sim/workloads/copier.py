"""One process that consumes, transforms and produces as a member of a group, exactly once.

It polls the partitions that are its own, makes one output of each input, and commits outputs and
offsets in one transaction. Now and then it hangs in the middle: its heartbeats stop, or the group
begins a new generation without it, and then it ends its transaction as a zombie would.
"""

import asyncio
from collections.abc import Sequence

from fencelog.check.history import Step, key_of
from fencelog.client.admin import Admin
from fencelog.client.cluster import Cluster
from fencelog.client.sender import ProducerOptions, Sender, open_sender
from fencelog.errors import RequestError
from fencelog.types import TopicPartition
from fencelog_sim.workload import Stage
from fencelog_sim.workloads.library import Rows
from fencelog_sim.workloads.member import GroupMember
from fencelog_sim.workloads.own import ERRORS, encode, read_once
from fencelog_sim.workloads.plans import named, poll
from fencelog_sim.workloads.settling import RETRY_S

RECORDS_MAX = 6
"""Of one partition in one transaction, and so what a restart does again at most."""
TIMEOUT_SESSIONS = 4
"""A transaction's timeout in sessions: what a dead member left open keeps its partitions."""
LEAVE_SHARE = 1 / 24
ABORT_SHARE = 1 / 16
HANG_SHARE = 1 / 12
REJOIN_SHARE = 1 / 16
HANG_SESSIONS_MAX = 3.0


class _ChosenAbortError(Exception):
    """The workload wants this transaction aborted."""


ABORTING: tuple[type[Exception], ...] = (_ChosenAbortError, *ERRORS)


class Copier:
    """A member and its producer, from a start to an end or death."""

    def __init__(
        self,
        stage: Stage,
        cluster: Cluster,
        member: GroupMember,
        transactional_id: str,
        outputs: Sequence[TopicPartition],
    ) -> None:
        """Know nothing of an earlier process; the group's offsets say where to continue."""
        self._stage = stage
        self._random = stage.random
        self._history = stage.history
        self._cluster = cluster
        self._member = member
        self._transactional_id = transactional_id
        self._outputs = outputs
        self._sender: Sender | None = None
        self._positions: dict[TopicPartition, int] = {}
        self._is_lost = True
        """The positions are to be asked for before anything else."""
        self._values = 0

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """Where it goes on, by partition; empty while that is not known."""
        return {} if self._is_lost else dict(self._positions)

    async def turn(self, *, is_steady: bool = False) -> None:
        """Join, leave, or copy a little. ``is_steady``: nothing is done wrong on purpose.

        Raises one of ERRORS; the next call begins where that leaves it.
        """
        try:
            await self._turn(is_steady=is_steady)
        except ERRORS as error:
            self._is_lost = True
            if isinstance(error, RequestError):
                self._member.refused(error.code)
            raise

    async def close(self) -> None:
        """Stop; the group finds out."""
        await self._member.close()
        await self._retire()

    async def _turn(self, *, is_steady: bool) -> None:
        if self._sender is None:
            # Before the offsets are fetched: this ends what the last process left open.
            options = ProducerOptions(
                transactional_id=self._transactional_id,
                transaction_timeout_ms=int(TIMEOUT_SESSIONS * self._stage.scale.session_s * 1000),
            )
            self._sender = await open_sender(self._cluster, options)
        if self._member.must_join:
            self._is_lost = True
            assigned = await self._member.join()
            self._positions = dict.fromkeys(assigned, 0)
        if self._is_lost:
            await self._find_positions()
        if not is_steady and self._random.random() < LEAVE_SHARE:
            await self._member.leave()
            return
        seen = await self._poll()
        if seen:
            await self._copy(self._sender, seen, is_steady=is_steady)

    async def _find_positions(self) -> None:
        """Go on where the group's committed offsets say."""
        committed = await Admin(self._cluster).committed_offsets(self._member.group)
        self._positions = {each: committed.get(each, 0) for each in self._positions}
        self._is_lost = False
        self._history.reset("assign")

    async def _poll(self) -> dict[TopicPartition, Rows]:
        """Take what comes next of each partition, a few records at most; moves the positions."""
        positions = dict(self._positions)
        ends = await Admin(self._cluster).offsets(list(positions), "latest", "transactional")
        invocation = self._history.invoke([["poll", {}]])
        found: dict[TopicPartition, Rows] = {}
        try:
            for partition, end in ends.items():
                start = positions[partition]
                if start >= end:
                    continue
                rows, positions[partition] = await read_once(self._cluster, partition, start, end)
                if len(rows) > RECORDS_MAX:
                    rows = rows[: self._random.randint(1, RECORDS_MAX)]
                    positions[partition] = rows[-1][0] + 1
                if rows:
                    found[partition] = rows
        except ERRORS as error:
            invocation.failed([], named(error))
            raise
        invocation.ok([poll(found)])
        self._positions = positions
        return found

    async def _copy(
        self, sender: Sender, seen: dict[TopicPartition, Rows], *, is_steady: bool
    ) -> None:
        """Write one output of each input, and how far the group has come, in one transaction."""
        who = self._member.credentials
        outputs = self._transform(seen)
        offsets = {each: self._positions[each] for each in seen}
        steps: list[Step] = [step for _, steps in outputs for step in steps]
        commit: Step = [
            "commit",
            self._member.group,
            {key_of(*each): offset for each, offset in offsets.items()},
        ]
        invocation = self._history.invoke([*steps, commit], transactional=True)
        try:
            await sender.begin()
            for partition, sends in outputs:
                values = [str(step[2]) for step in sends]
                await sender.enqueue([encode(partition, values, self._stage.now())])
            await self._hang(is_steady=is_steady)
            found = {each.partition: each.base_offset for each in await sender.flush()}
            await self._member.commit(sender._identity, who, offsets)
            await self._hang(is_steady=is_steady)
            self._maybe_abort(is_steady=is_steady)
        except ABORTING as error:
            # No commit was attempted, so nothing of it will be visible, whatever becomes of this.
            invocation.failed(steps, named(error))
            self._is_lost = True
            await self._abort(sender)
            if isinstance(error, _ChosenAbortError):
                return
            raise
        invocation.committing()
        try:
            await sender.end(commit=True)
        except ERRORS as error:
            invocation.indeterminate(steps, named(error))
            await self._retire()
            raise
        stored = [
            [*step[:3], found[partition] + number, *step[4:]]
            for partition, sends in outputs
            for number, step in enumerate(sends)
        ]
        invocation.ok([*stored, commit])

    def _transform(
        self, seen: dict[TopicPartition, Rows]
    ) -> list[tuple[TopicPartition, list[Step]]]:
        """One output of each input, each partition's to one of the outputs."""
        outputs: dict[TopicPartition, list[Step]] = {}
        for partition, rows in seen.items():
            target = self._random.choice(self._outputs)
            for offset, _ in rows:
                self._values += 1
                value = f"{self._history.process}.c{self._values}"
                source = [key_of(*partition), offset]
                outputs.setdefault(target, []).append(
                    ["send", key_of(*target), value, None, source]
                )
        return list(outputs.items())

    async def _hang(self, *, is_steady: bool) -> None:
        """Sometimes, be away for so long that the group may go on without this member."""
        chance = 1.0 if is_steady else self._random.random()
        session_s = self._stage.scale.session_s
        if chance < HANG_SHARE:
            self._member.is_silent = True
            try:
                await asyncio.sleep(self._random.uniform(0.5, HANG_SESSIONS_MAX) * session_s)
            finally:
                self._member.is_silent = False
        elif chance < HANG_SHARE + REJOIN_SHARE:
            # As where one thread takes part in the group and another one has the transaction.
            self._is_lost = True
            assigned = await self._member.join()
            self._positions = dict.fromkeys(assigned, 0)

    def _maybe_abort(self, *, is_steady: bool) -> None:
        if not is_steady and self._random.random() < ABORT_SHARE:
            raise _ChosenAbortError

    async def _abort(self, sender: Sender) -> None:
        try:
            if sender.in_transaction:
                await sender.end(commit=False)
        except ERRORS:
            await self._retire()
            await asyncio.sleep(RETRY_S)

    async def _retire(self) -> None:
        sender, self._sender = self._sender, None
        self._is_lost = True
        if sender is not None:
            await sender.close()
