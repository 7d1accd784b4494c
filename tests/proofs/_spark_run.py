"""One case of ``prove spark``: a session's queries, and what is killed under them.

The killer looks at processes and at Spark's checkpoint only. A strike is done when the query it hit
has noted another batch: the time until then is its stall. Drivers that end, whatever the reason,
are started again as they were, and nothing else is done for them.
"""

import random
import subprocess
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from fencelog.errors import FencelogError
from tests.proofs._compare import read_all
from tests.proofs._spark_cases import DEATHS, STANDALONE, Case, one_life
from tests.proofs._spark_history import Look, judge, look
from tests.proofs._spark_kills import (
    BATCH_RECORDS,
    CLUSTER_SETTINGS,
    LOCAL,
    MARKERS_S,
    PARTITIONS,
    SINK,
    SOURCE,
    STEP_S,
    Kill,
    Output,
    Run,
    Verdict,
    batch_ends,
    create_topics,
    last_batch,
)
from tests.support.broker import BrokerProcess
from tests.support.hangs import hanging
from tests.support.spark.cluster import StandaloneCluster
from tests.support.spark.driver_process import DriverProcess
from tests.support.spark.faults import plan
from tests.support.spark.queries import COMPLETE, COPY, EACH_BATCH, expected
from tests.support.spark.stateful import numbered_value
from tests.support.waiting import wait_until

SETTINGS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # The checkpoint's batches are what the output is compared with.
    "spark.sql.streaming.minBatchesToRetain": "10000",
}
STANDALONE_SETTINGS = {**CLUSTER_SETTINGS, "spark.executor.cores": "1", "spark.cores.max": "2"}
CORES_EACH = 2
"""Of each worker of the standalone cluster: a stopped driver keeps its executors."""
RANDOM_S = 1.5
SPARE_BATCHES = 5
"""Of input after a driver's last strike, for what is read until a random moment and after it."""
START_S = (0.5, 8.0)
BARREN_MAX = 6
"""Drivers in a row that note no batch; kills early in a start are among them."""
STUCK = (AssertionError, TimeoutError, subprocess.TimeoutExpired, FencelogError)
GOT_STUCK = "the case got stuck"
LISTED = (COPY, EACH_BATCH)
"""Queries whose output is the records of each batch, each once."""


@dataclass(frozen=True, kw_only=True)
class Strike:
    """A kill that was done."""

    kill: Kill
    in_batch: bool
    """Whether a batch of some query was planned and not noted."""
    stall_s: float | None
    """Until the query noted another batch; None where its input was at its end."""


@dataclass
class CaseVerdict(Verdict):
    """What came of a case."""

    case: Case | None = None
    strikes: list[Strike] = field(default_factory=list)
    ended: Counter[str] = field(default_factory=Counter)
    """Drivers that ended with an error by themselves, by the kill before."""
    last_words: list[str] = field(default_factory=list)
    transactions: int = 0
    """What the checker checked."""


_KINDS = frozenset({"worker", "daemon", "executor"})
"""Targets that are found among the processes at a random moment."""


class _EndedError(Exception):
    """The driver ended before it was struck."""


class CaseRun(Run):
    """The queries of a case. What the base class calls the query is the one that is struck."""

    def __init__(
        self,
        folder: Path,
        broker: BrokerProcess,
        chance: random.Random,
        verdict: CaseVerdict,
        case: Case,
        cluster: StandaloneCluster | None,
    ) -> None:
        """Nothing runs yet."""
        super().__init__(folder, broker, chance, verdict)
        self._verdict: CaseVerdict = verdict
        self._case = case
        self._cluster = cluster
        self._looks: dict[str, list[Look]] = {query: [] for query in case.queries}
        self._left: deque[Kill] = deque()
        self._planned: deque[tuple[int, Kill]] = deque()
        """The strikes of this driver, each with the batch of the struck query."""
        self._pending: tuple[Kill, str, int, bool, float] | None = None
        """A strike whose query has not gone on: kill, query, last batch, in a batch, when."""
        self._barren = 0
        self._noted = -1
        self._aim(case.queries[0])

    def _aim(self, query: str) -> None:
        self._query = query
        self._checkpoint = self._of(query)

    def _of(self, query: str) -> Path:
        return self._folder / f"checkpoint-{query}"

    # -- drivers -------------------------------------------------------------------------------

    def strike(self, kills: Sequence[Kill], until: float, progress: Callable[[], None]) -> None:
        """Do the kills, no new one after ``until`` (monotonic), and let the queries end."""
        self._left.extend(kills)
        while self._left and time.monotonic() < until:
            self._settle()
            if self._driver is not None and not self._planned:
                self._driver.end(STEP_S)
            driver = self._running()
            batch, kill = self._planned[0]
            try:
                self._hit(kill, batch, driver)
            except (_EndedError, psutil.NoSuchProcess):
                continue  # whom it was to hit is gone: again, with a new driver if need be
            self._planned.popleft()
            self._left.popleft()
            progress()
        self._settle()
        if self._left:
            self._stop()  # nobody would release what is held there
        self._left.clear()
        while self._running().end(STEP_S) != 0:
            pass
        self._look_at_all()

    def _running(self) -> DriverProcess:
        """The driver, started if none runs, with input for what is planned."""
        if self._driver is not None and self._driver.status is None:
            return self._driver
        self._note_end()
        noted = sum(self._last_of(query, "commits") for query in self._case.queries)
        self._barren = 0 if noted > self._noted else self._barren + 1
        self._noted = noted
        assert self._barren < BARREN_MAX, f"{BARREN_MAX} drivers in a row noted no batch"
        self._aim(self._chance.choice(self._case.queries))
        life = one_life(self._left)
        # The batch that an earlier driver left is repeated as it was: the strikes come after it.
        first = self._last("commits") + 2
        self._planned = deque((first + index, kill) for index, kill in enumerate(life))
        ahead = min(sum(self._ends_of(query)) for query in self._case.queries)
        more = len(life) + SPARE_BATCHES
        self._send(max(0, more * BATCH_RECORDS - (self._sent - ahead)))
        self._driver = self._start_queries()
        return self._driver

    def _start_queries(self) -> DriverProcess:
        of_cluster = {} if self._case.master == LOCAL else CLUSTER_SETTINGS
        if self._cluster is not None:
            of_cluster = STANDALONE_SETTINGS
        return self._start_job(
            {
                "master": self._case.master if self._cluster is None else self._cluster.master,
                "settings": {**SETTINGS, **of_cluster},
                "checkpoint": str(self._folder / "checkpoint"),
                "queries": list(self._case.queries),
                "faults": {self._query: plan(*self._faults(list(self._planned)))},
            }
        )

    def _note_end(self) -> None:
        """A driver that is gone without having been killed ended by itself."""
        if self._driver is not None and self._driver.status not in (0, None):
            kills = self._verdict.kills
            self._verdict.ended[kills[-1].partition(",")[0] if kills else "nothing"] += 1
            self._verdict.last_words.append(self._driver.stderr)
        self._driver = None

    def _stop(self) -> None:
        if self._driver is not None:
            with suppress(psutil.NoSuchProcess):
                self._driver.kill_tree()
        self._driver = None

    def last_words(self) -> str:
        """What the driver that runs, or ran last, has written to stderr."""
        return "" if self._driver is None else self._driver.stderr

    def clean(self) -> None:
        """Kill all that is left."""
        for zombie, _ in self._zombies:
            with suppress(psutil.NoSuchProcess):
                zombie.kill_tree()
        self._stop()

    # -- strikes -------------------------------------------------------------------------------

    def _hit(self, kill: Kill, batch: int, driver: DriverProcess) -> None:
        facts: Mapping[str, int] = {}
        if kill.point == "start":
            threading.Event().wait(self._chance.uniform(*START_S))
        elif kill.point == "random":
            self._wait(driver, lambda: self._last("offsets") >= batch, f"batch {batch} planned")
            threading.Event().wait(self._chance.uniform(0.0, RANDOM_S))
            if kill.target in _KINDS:
                self._wait(driver, lambda: self._victims(kill), str(kill))
        else:
            facts = self._reached(driver, batch, kill)
        noted, in_batch, began = self._last("commits"), self._is_busy(), time.monotonic()
        self._kill_now(kill, driver, facts)
        began += self._check_held(kill, batch)
        if kill.target == "zombie":
            self._zombies.append((driver, self._name(batch, kill)))
        elif facts:
            self._announced.release(self._name(batch, kill))
        if kill.target in DEATHS:
            self._driver = None
        self._pending = (kill, self._query, noted, in_batch, began)
        self._verdict.kills.append(f"{kill}, {self._query}, batch {batch}")

    def _kill_now(self, kill: Kill, driver: DriverProcess, facts: Mapping[str, int]) -> None:
        match kill.target:
            case "zombie":
                driver.pause()
            case "jvm":
                driver.jvm().kill()
                try:
                    driver.end(STEP_S)
                finally:
                    driver.kill()
            case "daemon" if facts:
                psutil.Process(facts["parent"]).kill()
            case target if target in _KINDS and not facts:
                self._chance.choice(self._victims(kill)).kill()
            case _:
                super()._kill_now(kill, driver, facts)

    def _victims(self, kill: Kill) -> list[psutil.Process]:
        """The processes of this kind that run."""
        tree = self._driver.tree() if self._driver is not None else []
        for pid in self._cluster.pids if self._cluster else ():
            tree += psutil.Process(pid).children(recursive=True)
        return [each for each in tree if _kind(each) == kill.target]

    def _check_held(self, kill: Kill, batch: int) -> float:
        """Seconds for which the struck query stood still, while its output was compared."""
        began = time.monotonic()
        is_held = kill.point not in ("random", "start") and kill.target != "worker"
        if is_held and self._query == COPY:
            decided = batch if kill.point in self.decided_at else batch - 1
            self._expect([decided], f"{kill}, batch {batch}")
        return time.monotonic() - began

    def _settle(self) -> None:
        """Wait until the query that was struck has gone on, starting drivers as they end."""
        while self._pending is not None:
            kill, query, noted, in_batch, began = self._pending
            driver = self._running()
            wait_until(
                lambda: self._last_of(query, "commits") > noted or driver.status is not None,  # noqa: B023
                deadline_s=STEP_S,
                what=f"progress of {query} after {kill}",
            )
            has_gone_on = self._last_of(query, "commits") > noted
            if not has_gone_on and driver.status != 0:
                continue
            stall_s = time.monotonic() - began if has_gone_on else None
            self._verdict.strikes.append(Strike(kill=kill, in_batch=in_batch, stall_s=stall_s))
            self._pending = None
            if self._zombies:
                self._continue(list(self._zombies))
            else:
                self._look(query, f"{kill}, {query}")

    def _wait(self, driver: DriverProcess, condition: Callable[[], object], what: str) -> None:
        def reached() -> bool:
            if condition():
                return True
            if driver.status is not None:
                raise _EndedError
            return False

        wait_until(reached, deadline_s=STEP_S, what=what)

    def _name(self, batch: int, kill: Kill) -> str:
        return f"{self._query}-{super()._name(batch, kill)}"

    # -- what the checkpoints and sinks say ----------------------------------------------------

    def _value(self, number: int) -> bytes:
        return numbered_value(number).encode()

    def _last_of(self, query: str, log: str) -> int:
        return last_batch(self._of(query) / log)

    def _ends_of(self, query: str) -> tuple[int, ...]:
        return batch_ends(self._of(query), self._last_of(query, "offsets"))

    def _is_busy(self) -> bool:
        return any(
            self._last_of(query, "offsets") > self._last_of(query, "commits")
            for query in self._case.queries
        )

    def _expect_any(self, when: str) -> None:
        for query in self._case.queries:
            self._look(query, when)

    def _read(self) -> Output:
        """The struck copy's output, as the base class compares it."""
        found: Output = Counter()
        for number, count in self._values(self._query).items():
            found[int(number) % PARTITIONS, int(number) // PARTITIONS] += count
        return found

    def _values(self, query: str) -> Counter[str]:
        began = time.time()
        read = read_all(self._broker.address, f"{SINK}-{query}", PARTITIONS)
        self._looks[query].append(look(read.items(), began))
        return Counter(value.decode() for records in read.values() for _, value in records)

    def _batches(self, query: str) -> dict[int, list[int]]:
        """The records of each batch, by the checkpoint."""
        last = self._last_of(query, "commits")
        ends = [batch_ends(self._of(query), batch) for batch in range(-1, last + 1)]
        return {
            batch: sorted(
                place * PARTITIONS + partition
                for partition in range(PARTITIONS)
                for place in range(ends[batch][partition], ends[batch + 1][partition])
            )
            for batch in range(last + 1)
        }

    def _look(self, query: str, when: str) -> None:
        """Nothing is doubled, and nothing is there that no input accounts for."""
        if query == COMPLETE:
            return  # what it writes follows from its batches: the end tells
        more = self._values(query) - expected(query, [range(self._sent)])
        if more:
            self._wrong(f"after {when}: {more.total()} too many, {sorted(more)[:3]} among them")

    def _look_at_all(self) -> None:
        """Each query's output is what its input makes, and the checker finds nothing."""
        for query in self._case.queries:
            batches = self._batches(query)
            assert sum(map(len, batches.values())) == self._sent, f"{query} has not read all"
            wanted = expected(query, list(batches.values()))
            deadline = time.monotonic() + MARKERS_S
            found = self._values(query)
            while wanted - found and time.monotonic() < deadline:
                found = self._values(query)
            lost, more = wanted - found, found - wanted
            self._verdict.read += found.total()
            self._verdict.lost += lost.total()
            self._verdict.doubled += more.total()
            if lost or more:
                self._wrong(
                    f"in the end of {query} {lost.total()} values are lost, {more.total()} too"
                    f" many: {sorted(lost)[:5]} {sorted(more)[:5]}"
                )
            if query in LISTED:
                problems, count = judge(query, self._of(query), batches, self._looks[query])
                self._verdict.problems += problems
                self._verdict.transactions += count


def _kind(process: psutil.Process) -> str:
    """Which target of a kill a process of Spark is, as far as it is one."""
    try:
        name, command = process.name(), " ".join(process.cmdline())
        parent = process.parent()
        above = " ".join(parent.cmdline()) if parent is not None else ""
    except psutil.NoSuchProcess:
        return "gone"
    if name == "java":
        return "executor" if "CoarseGrainedExecutorBackend" in command else "java"
    if "pyspark.daemon" in command:
        return "worker" if "pyspark.daemon" in above else "daemon"
    # The planner of a source and the committer of a sink are no children of a daemon.
    return "worker" if "-m pyspark." in command else "other"


def run(
    folder: Path,
    case: Case,
    *,
    kills: Sequence[Kill],
    seed: int,
    until: float,
    environment: Mapping[str, str] | None = None,
    progress: Callable[[], None] = lambda: None,
) -> CaseVerdict:
    """Do the kills of one case, none after ``until`` (monotonic), and judge its output.

    What gets stuck is a problem of the verdict, with the last words of its driver.
    """
    began = time.monotonic()
    verdict = CaseVerdict(seed=seed, case=case)
    try:
        with ExitStack() as stack:
            data = folder / "data"
            broker = BrokerProcess(data, durability=case.durability, environment=environment)
            stack.enter_context(broker)
            cluster = None
            if case.master == STANDALONE:
                cluster = StandaloneCluster(folder / "cluster", cores=CORES_EACH)
                stack.enter_context(cluster)
            create_topics(broker.address, (SOURCE, *(f"{SINK}-{each}" for each in case.queries)))
            session = CaseRun(folder, broker, random.Random(seed), verdict, case, cluster)
            stack.callback(session.clean)
            try:
                session.strike(kills, until, progress)
            except STUCK as error:
                verdict.problems.append(f"{GOT_STUCK} at its strikes: {error}")
                verdict.last_words.append(session.last_words())
            verdict.problems += hanging(broker.address)
    except STUCK as error:
        verdict.problems.append(f"{GOT_STUCK}: {error}")
    verdict.seconds = time.monotonic() - began
    return verdict
