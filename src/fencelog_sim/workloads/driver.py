"""One driver of a versioned app: versions 0, 1, 2 … by several writers each, and what goes wrong.

A version is written by winners, which its commit names, and by losers, which it does not: attempts
that were retried or speculated. Losers go on writing after the decision, and earlier runs come
back. A history has no place for what a broker answers to those, so a wrong answer raises.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from fencelog.client.cluster import Cluster
from fencelog.client.model import AlreadyCommitted, Joined, WriterInfo
from fencelog.client.sender import ProducerOptions, open_sender
from fencelog.client.versioned_transactions import Transactions
from fencelog.errors import ErrorCode, RequestError
from fencelog_sim.workload import Stage
from fencelog_sim.workloads.attempts import (
    Attempt,
    Batch,
    Ending,
    Outcome,
    WrongAnswerError,
    fingerprint_of,
    must_refuse,
    query_of,
)
from fencelog_sim.workloads.own import ERRORS, OwnReader, OwnWriter, open_cluster
from fencelog_sim.workloads.plans import Send, invoked, named, poll, unknown
from fencelog_sim.workloads.player import choose_partitions
from fencelog_sim.workloads.settling import RETRY_S
from fencelog_sim.workloads.topics import Generations

WINNERS_MAX = 3
LOSERS_MAX = 2
SENDS_MAX = 3
TIMEOUT_MS = 10_000
SHORT_TIMEOUT_MS = 600
SESSION_MS = 2_000
SHORT_SESSION_MS = 300
RACE_S = 0.01

POLL_SHARE = 0.25
REPLAY_SHARE = 0.1
STALE_SHARE = 0.05
DESERT_SHARE = 0.03
ENDED_SHARE = 0.5
ASSIGN_SHARE = 1 / 16


class Driver:
    """One process that drives an app, through one run or several."""

    def __init__(
        self, stage: Stage, cluster: Cluster, tasks: Cluster, topics: Generations, app: str
    ) -> None:
        """Know nothing of the app: the broker knows.

        Writers have connections of their own, ``tasks``, as another process has: a broker answers
        one connection's requests one after the other, and no write would ever meet a decision.
        """
        self._stage = stage
        self._random = stage.random
        self._history = stage.history
        self._tasks = tasks
        self._transactions = Transactions(cluster)
        self._reader = OwnReader(cluster)
        self._topics = topics
        self._app = app
        self._writer = WriterInfo(session_ms=self._random.choice((-1, SESSION_MS)))
        self._query = query_of(app)
        self._runs = 1
        self._batches = 0
        self._joined_runs: list[str] = []
        self._version: int | None = None
        self._may_be_open = False
        """Whether an incarnation of this run may be open, or a commit of it on its way."""

    @property
    def _run(self) -> str:
        return f"{self._history.process}/{self._runs}"

    @property
    def _is_driving(self) -> bool:
        return self._run in self._joined_runs

    async def play(self) -> None:
        """Drive until the stage stops."""
        while not self._stage.stopping:
            try:
                await self._turn()
            except ERRORS as error:
                self._refused(error)
                # What failed at once would fail at once again without any time passing.
                await asyncio.sleep(RETRY_S)
            await self._stage.pause()

    async def _turn(self) -> None:
        if self._version is None:
            await self._topics.find()
            self._version = (await self._transactions.describe(self._app)).last_version + 1
            await self._assign()
        chance = self._random.random()
        is_settled = self._is_driving and not self._may_be_open
        if chance < POLL_SHARE:
            await self._poll()
        elif chance < POLL_SHARE + REPLAY_SHARE and is_settled and self._version > 0:
            await self._replay(self._version - 1)
        elif chance < POLL_SHARE + REPLAY_SHARE + STALE_SHARE and is_settled:
            await self._come_back(self._version)
        elif chance > 1 - DESERT_SHARE:
            await self._desert()
        else:
            await self._write_version(self._version)

    def _refused(self, error: Exception) -> None:
        """Draw the conclusion from an error; raises WrongAnswerError if no fault explains it."""
        self._may_be_open = True
        code = error.code if isinstance(error, RequestError) else ErrorCode.NETWORK_EXCEPTION
        if code is ErrorCode.RUN_FENCED:
            self._begin_run()
        elif code in (ErrorCode.STALE_VERSION, ErrorCode.VERSION_GAP) and not self._is_driving:
            self._version = None  # An earlier run that still runs was faster.
        elif code in (
            ErrorCode.STALE_VERSION,
            ErrorCode.VERSION_GAP,
            ErrorCode.VERSION_CONFLICT,
            ErrorCode.APP_IN_USE,
        ):
            raise WrongAnswerError(f"{self._run} drives {self._app}, and got: {error}")

    def _begin_run(self) -> None:
        """Go on as a new run; its first Join ends what the last one left open."""
        self._runs += 1
        self._version = None
        self._may_be_open = False

    # --- a version

    async def _write_version(self, version: int) -> None:
        """Try once to write and commit this version."""
        if self._may_be_open:
            # After this a commit whose answer was lost can no longer decide for its writers.
            await self._transactions.abort(self._app, self._query, self._run, version)
            self._may_be_open = False
        endings: dict[Ending, int] = {
            self._commit: 12,
            self._abort: 2,
            self._run_out: 2,
            self._mix: 1,
            self._be_succeeded: 1,
            self._race: 1,
        }
        (ending,) = self._random.choices(list(endings), list(endings.values()))
        timeout_ms = SHORT_TIMEOUT_MS if ending == self._run_out else TIMEOUT_MS
        winners = self._random.randint(1, WINNERS_MAX)
        losers = self._random.randint(0, LOSERS_MAX)
        self._batches += 1
        attempts: list[Attempt] = []
        try:
            for number in range(winners + losers):
                name = f"{self._batches}" if number < winners else f"{self._batches}-{number}"
                attempt = await self._join(version, timeout_ms, name)
                if attempt is None:
                    self._version = version + 1
                    return
                attempts.append(attempt)
            await self._write(version, attempts[:winners], attempts[winners:], ending)
        finally:
            for attempt in attempts:
                await attempt.writer.close()

    async def _join(self, version: int, timeout_ms: int, name: str) -> Attempt | None:
        """Return one more writer of the version; None where it is committed."""
        joined = await self._transactions.join(
            self._app,
            self._query,
            self._run,
            version,
            timeout_ms,
            takeover=False,
            writer=self._writer,
        )
        if not self._is_driving:
            self._joined_runs.append(self._run)
        if isinstance(joined, AlreadyCommitted):
            return None
        return await self._attempt(self._tasks, joined, name)

    async def _attempt(self, cluster: Cluster, joined: Joined, name: str) -> Attempt:
        sender = await open_sender(cluster, ProducerOptions(joined=joined))
        sends = self._plan(joined, name)
        return Attempt(joined, OwnWriter(sender, self._stage), sends)

    def _plan(self, joined: Joined, name: str) -> list[Send]:
        """Return sends of values that say app, version, process, batch and writer."""
        writer = f"{self._history.process}.{name}.{joined.producer_id}"
        prefix = f"{joined.app}@{joined.version}#{writer}"
        sends: list[Send] = []
        first = 0
        for _ in range(self._random.randint(1, SENDS_MAX)):
            number = self._random.randrange(self._stage.scale.partitions)
            last = first + self._random.randint(1, self._stage.scale.records_per_send)
            values = [f"{prefix}.{each}" for each in range(first, last)]
            first = last
            sends.append(Send(self._topics.partition(self._topics.current, number), values))
        return sends

    async def _write(
        self, version: int, winners: list[Attempt], losers: list[Attempt], ending: Ending
    ) -> None:
        """Write, end the try in a randomly chosen way, and record its outcome."""
        lost = [self._history.invoke(invoked(each.sends), transactional=True) for each in losers]
        sends = [send for winner in winners for send in winner.sends]
        invocation = self._history.invoke(invoked(sends), transactional=True)
        batch = Batch(self._run, version, winners, losers, invocation)
        offsets: list[list[int]] = []
        try:
            for loser in losers:
                await self._stray(loser, loser.sends[:1])
            offsets = await self._send(winners)
        except ERRORS as error:
            invocation.failed(unknown(sends), named(error))
            self._refused(error)
        else:
            begun = self._random.choice((1, 2))
            for loser in losers:
                # The first write of a partition may arrive together with the decision.
                await self._stray(loser, loser.sends[1:begun])
            outcome = await ending(batch)
            batch.record(outcome, offsets)
            if outcome.how == "ok":
                self._version = version + 1
            for loser in losers if ending != self._run_out else []:  # which closed them
                await self._stray(loser, loser.sends[begun:], to_the_end=True)
        for each, loser in zip(lost, losers, strict=True):
            # No commit names it, so it will never be visible, whatever its writes were told.
            each.failed(unknown(loser.sends), "not named")
        await self._follow(sends, offsets)

    async def _send(self, winners: Sequence[Attempt]) -> list[list[int]]:
        """Write what is to be committed; one writer after the other, so that it has one order."""
        offsets: list[list[int]] = []
        for winner in winners:
            for send in winner.sends:
                await winner.writer.send(send.partition, send.values)
            offsets += await winner.writer.flush()
        return offsets

    async def _stray(
        self, loser: Attempt, sends: Sequence[Send], *, to_the_end: bool = False
    ) -> None:
        """Write what will never be visible, while others write; ``to_the_end``: until answered."""
        try:
            for send in sends:
                await loser.writer.send(send.partition, send.values)
            if to_the_end:
                await loser.writer.flush()
        except ERRORS:
            return

    # --- ways to end a try

    async def _decide(self, batch: Batch, named_ids: Sequence[int]) -> None:
        await self._transactions.commit(
            self._app,
            self._query,
            batch.run,
            batch.version,
            fingerprint_of(self._app, batch.version),
            named_ids,
            takeover=False,
        )

    async def _commit(self, batch: Batch) -> Outcome:
        """Commit, as drivers do; sometimes with a replay of the last version in between."""
        batch.invocation.committing()
        try:
            if batch.version > 0 and self._random.random() < REPLAY_SHARE:
                await self._replay(batch.version - 1)
            await self._decide(batch, batch.named)
        except ERRORS as error:
            self._refused(error)
            # The incarnation is over, so this commit can never be accepted any more (V1).
            aborted = isinstance(error, RequestError) and (
                error.code is ErrorCode.TRANSACTION_ABORTED
            )
            return Outcome("failed" if aborted else "indeterminate", named(error))
        return Outcome("ok")

    async def _abort(self, batch: Batch) -> Outcome:
        """Abort on purpose, perhaps for good: then a task of the run that is late is refused (V2).

        No commit was attempted, so its outcome changes nothing.
        """
        app, query, run, version = self._app, self._query, batch.run, batch.version
        ends_run = self._random.random() < ENDED_SHARE
        try:
            await self._transactions.abort(app, query, run, version, ends_run)
            if ends_run:
                await must_refuse(
                    f"V2: a task that joins version {version} of {run}, which has ended,",
                    ErrorCode.TRANSACTION_ABORTED,
                    self._transactions.join(app, query, run, version, TIMEOUT_MS, takeover=False),
                )
        except ERRORS as error:
            self._refused(error)
        if ends_run:
            self._begin_run()
        return Outcome("failed", "aborted on purpose")

    async def _run_out(self, batch: Batch) -> Outcome:
        """Renew no more, and commit at about the time when the transaction runs out."""
        for attempt in batch.attempts:
            await attempt.writer.close()
        await asyncio.sleep(SHORT_TIMEOUT_MS / 1000 * self._random.uniform(0.7, 1.3))
        return await self._commit(batch)

    async def _mix(self, batch: Batch) -> Outcome:
        """Abort, and commit the aborted writers together with one of the next incarnation."""
        try:
            await self._transactions.abort(self._app, self._query, batch.run, batch.version)
            other = await self._join(batch.version, TIMEOUT_MS, f"{self._batches}-mixed")
            if other is not None:
                await self._mix_with(batch, other)
        except ERRORS as error:
            self._refused(error)
        self._may_be_open = True
        return Outcome("failed", "aborted on purpose")

    async def _mix_with(self, batch: Batch, other: Attempt) -> None:
        invocation = self._history.invoke(invoked(other.sends), transactional=True)
        try:
            await self._send([other])
            await must_refuse(
                "V1: a commit that names producers of an aborted incarnation",
                ErrorCode.TRANSACTION_ABORTED,
                self._decide(batch, [*batch.named, other.joined.producer_id]),
            )
        finally:
            invocation.failed(unknown(other.sends), "named together with aborted writers")
            await other.writer.close()

    async def _be_succeeded(self, batch: Batch) -> Outcome:
        """Let a newer run take over before the commit."""
        self._begin_run()
        try:
            attempt = await self._join(batch.version, TIMEOUT_MS, f"{self._batches}-newer")
            if attempt is not None:
                await attempt.writer.close()
            commit = self._decide(batch, batch.named)
            await must_refuse("V2: the commit of an older run", ErrorCode.RUN_FENCED, commit)
        except ERRORS as error:
            self._refused(error)
        self._version = None
        return Outcome("failed", "a newer run took over before the commit")

    async def _race(self, batch: Batch) -> Outcome:
        """Let a newer run take over while the commit is on its way."""
        newer = f"{self._history.process}/{self._runs + 1}"

        async def take_over() -> None:
            await asyncio.sleep(self._random.uniform(0, RACE_S))
            try:
                await self._transactions.join(
                    self._app, self._query, newer, batch.version, TIMEOUT_MS, takeover=False
                )
            except ERRORS:
                return  # It may be the newest run now; its next request shows that.

        async with asyncio.TaskGroup() as racing:
            racing.create_task(take_over())
            committing = racing.create_task(self._commit_of_older(batch))
        self._begin_run()
        return committing.result()

    async def _commit_of_older(self, batch: Batch) -> Outcome:
        await asyncio.sleep(self._random.uniform(0, RACE_S))
        batch.invocation.committing()
        try:
            await self._decide(batch, batch.named)
        except ERRORS as error:
            return Outcome("indeterminate", named(error))
        return Outcome("ok")

    async def _desert(self) -> None:
        """Write in an app that no client uses again: its timeout or session ends it (V7).

        It has no query, so it is one batch and its app is forgotten after a while (V4).
        """
        self._batches += 1
        app = f"{self._app}-{self._history.process}-{self._batches}"
        timeout_ms, session_ms = self._random.choice(
            ((SHORT_TIMEOUT_MS, -1), (TIMEOUT_MS, SHORT_SESSION_MS))
        )
        leaving = open_cluster(self._stage)
        try:
            joined = await Transactions(leaving).join(
                app,
                "",
                self._run,
                0,
                timeout_ms,
                takeover=False,
                writer=WriterInfo(session_ms=session_ms),
            )
            assert isinstance(joined, Joined), joined
            await self._write_and_leave(await self._attempt(leaving, joined, str(self._batches)))
        finally:
            await leaving.close()

    async def _write_and_leave(self, attempt: Attempt) -> None:
        invocation = self._history.invoke(invoked(attempt.sends), transactional=True)
        try:
            await self._stray(attempt, attempt.sends, to_the_end=True)
        finally:
            invocation.failed(unknown(attempt.sends), "deserted")
            await attempt.writer.close()

    # --- what must be refused, or do nothing

    async def _replay(self, version: int) -> None:
        """Do again what was done: the last version is committed, and nothing changes (V3)."""
        app, query, run = self._app, self._query, self._run
        fingerprint = fingerprint_of(app, version)
        how = self._random.randrange(3)
        if how == 0:
            joined = await self._transactions.join(
                app, query, run, version, TIMEOUT_MS, takeover=False
            )
            if not isinstance(joined, AlreadyCommitted):
                raise WrongAnswerError(f"V3: {app} was let write version {version} again")
        elif how == 1:
            await self._transactions.commit(
                app, query, run, version, fingerprint, [self._random.getrandbits(30)], False
            )
        else:
            await must_refuse(
                f"V3: version {version} of {app} from other input",
                ErrorCode.VERSION_CONFLICT,
                self._transactions.commit(
                    app, query, run, version, fingerprint + b"'", [], takeover=False
                ),
            )

    async def _come_back(self, version: int) -> None:
        """Send requests as a run that was replaced by another (V2)."""
        older = [run for run in self._joined_runs if run != self._run]
        if not older:
            return
        app, query, run = self._app, self._query, self._random.choice(older)
        fingerprint = fingerprint_of(app, version)
        requests: list[Callable[[], Awaitable[object]]] = [
            lambda: self._transactions.join(app, query, run, version, TIMEOUT_MS, takeover=False),
            lambda: self._transactions.commit(app, query, run, version, fingerprint, [], False),
            lambda: self._transactions.abort(app, query, run, version),
            lambda: self._transactions.renew(app, query, run, version),
        ]
        what = f"V2: a request of {run}, which {self._run} succeeded,"
        request = self._random.choice(requests)
        await must_refuse(what, ErrorCode.RUN_FENCED, request())

    # --- reading

    async def _poll(self) -> None:
        if self._random.random() < ASSIGN_SHARE:
            await self._assign()
        invocation = self._history.invoke([["poll", {}]])
        try:
            seen = await self._reader.poll()
        except ERRORS as error:
            invocation.failed([], named(error))
            return
        invocation.ok([poll(seen)])

    async def _assign(self) -> None:
        partitions = self._stage.scale.partitions
        chosen = await choose_partitions(self._random, self._topics, partitions, self._reader)
        await self._reader.assign(chosen)
        self._history.reset("assign")

    async def _follow(self, sends: Sequence[Send], offsets: Sequence[Sequence[int]]) -> None:
        """Go on to the next topic where this one has had its values."""
        if any(
            self._topics.is_full(send.partition, found[-1])
            for send, found in zip(sends, offsets, strict=False)  # none where a write failed
        ):
            await self._topics.rotate()
            await self._assign()
