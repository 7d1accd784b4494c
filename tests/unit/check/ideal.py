"""Clean histories: random clients of an ideal log, which loses and duplicates nothing.

Clients are generators that are resumed in random order, so that their operations overlap. What
becomes of an operation and what its client is told about it are chosen apart.
"""

from collections.abc import Iterator
from random import Random

from fencelog.check.history import Event, Recorder, Step

KEYS = ("t/0", "t/1", "t/2")
OUTPUTS = ("out/0", "out/1")
GROUP = "g"
OPEN, COMMITTED, ABORTED, MARKER = range(4)


class Cluster:
    """Partitions, transactions and one group's positions; never wrong."""

    def __init__(self) -> None:
        """Empty."""
        self.logs: dict[str, list[tuple[object, int]]] = {key: [] for key in KEYS + OUTPUTS}
        self.states: dict[int, int] = {0: COMMITTED, -1: MARKER}
        self.touched: dict[int, set[str]] = {}
        self.positions: dict[str, int] = dict.fromkeys(KEYS, 0)

    def begin(self) -> int:
        """A new transaction."""
        txn = len(self.states)
        self.states[txn] = OPEN
        self.touched[txn] = set()
        return txn

    def append(self, key: str, value: object, txn: int = 0) -> int:
        """Append, in a transaction unless it is 0; the offset."""
        self.logs[key].append((value, txn))
        if txn:
            self.touched[txn].add(key)
        return len(self.logs[key]) - 1

    def end(self, txn: int, state: int) -> None:
        """Commit or abort, with a marker on each partition."""
        if self.states[txn] == OPEN:
            self.states[txn] = state
            for key in sorted(self.touched[txn]):
                self.logs[key].append((None, -1))

    def last_stable(self, key: str) -> int:
        """The first offset of an open transaction."""
        log = self.logs[key]
        return next((o for o, (_, txn) in enumerate(log) if self.states[txn] == OPEN), len(log))

    def read(self, key: str, position: int, most: int) -> tuple[list[list[object]], int]:
        """Committed records from a position on, and the next position."""
        found: list[list[object]] = []
        stable = self.last_stable(key)
        while position < stable and len(found) < most:
            value, txn = self.logs[key][position]
            if self.states[txn] == COMMITTED:
                found.append([position, value])
            position += 1
        return found, position


class Run:
    """One random run; ``events`` is its history."""

    def __init__(self, seed: int, operations: int = 60) -> None:
        """Everything follows from the seed."""
        self.random = Random(seed)
        self.cluster = Cluster()
        self.events: list[Event] = []
        self.clock = 0.0
        self.values = 0
        self.left = operations
        self._play()

    def recorder(self, process: str) -> Recorder:
        """Writes the events of one client."""
        return Recorder(process, now=self._now, write=self.events.append)

    def _now(self) -> float:
        self.clock += self.random.random() / 100
        return round(self.clock, 4)

    def _play(self) -> None:
        clients = [self.producer(f"w{n}", transactional=n > 0) for n in range(3)]
        clients += [self.consumer(f"r{n}") for n in range(2)]
        clients += [self.mixed("m0"), self.copier("c0", KEYS[0]), self.copier("c1", KEYS[1])]
        while clients:
            client = self.random.choice(clients)
            if next(client, "ended") == "ended":
                clients.remove(client)
        for txn, state in list(self.cluster.states.items()):
            if state == OPEN:
                self.cluster.end(txn, ABORTED)
        for number in range(2):
            self._final(f"final{number}")

    def _goes_on(self) -> bool:
        self.left -= 1
        return self.left >= 0

    def _sends(self, keys: tuple[str, ...]) -> list[Step]:
        steps: list[Step] = []
        for _ in range(self.random.randint(1, 4)):
            self.values += 1
            steps.append(["send", self.random.choice(keys), self.values])
        return steps

    def _fate(self) -> tuple[int, str]:
        """The outcome of a transaction, and the response to its client."""
        committed = self.random.random() < 0.75
        told = self.random.choices(["sure", "indeterminate", "nothing"], [8, 2, 1])[0]
        if told != "sure":
            return (COMMITTED if committed else ABORTED), told
        return (COMMITTED, "ok") if committed else (ABORTED, "failed")

    def producer(self, process: str, *, transactional: bool) -> Iterator[None]:
        """Sends, in transactions or without."""
        history = self.recorder(process)
        while self._goes_on():
            steps = self._sends(KEYS)
            op = history.invoke(steps, transactional=transactional)
            yield
            txn = self.cluster.begin() if transactional else 0
            done: list[Step] = []
            for step in steps:
                done.append([*step, self.cluster.append(str(step[1]), step[2], txn)])
                yield
            state, told = self._fate() if transactional else (COMMITTED, "ok")
            if transactional:
                op.committing()
                self.cluster.end(txn, state)
            yield
            if told == "nothing":
                history = self.recorder(f"{process}-{self.left}")
            elif told == "ok":
                op.ok(done)
            else:
                getattr(op, told)(steps, "lost")

    def consumer(self, process: str) -> Iterator[None]:
        """Polls all keys, and now and then seeks."""
        history = self.recorder(process)
        positions = dict.fromkeys(KEYS + OUTPUTS, 0)
        while self._goes_on():
            op = history.invoke([["poll"]])
            yield
            polled = {}
            for key in positions:
                polled[key], positions[key] = self.cluster.read(
                    key, positions[key], self.random.randint(0, 5)
                )
            op.ok([["poll", polled]])
            if self.random.random() < 0.1:
                history.reset("seek")
                positions = dict.fromkeys(positions, 0)
            yield

    def mixed(self, process: str) -> Iterator[None]:
        """Polls and sends in one transaction; goes back after an abort."""
        history = self.recorder(process)
        positions = dict.fromkeys(KEYS, 0)
        while self._goes_on():
            steps = self._sends(KEYS)
            op = history.invoke(steps, transactional=True)
            txn = self.cluster.begin()
            after, done = dict(positions), []
            for step in steps:
                polled = {}
                for key in KEYS:
                    polled[key], after[key] = self.cluster.read(key, after[key], 2)
                done.append(["poll", polled])
                done.append([*step, self.cluster.append(str(step[1]), step[2], txn)])
                yield
            state = self.random.choice([COMMITTED, ABORTED])
            self.cluster.end(txn, state)
            yield
            if state == COMMITTED:
                op.ok(done)
                positions = after
            else:
                op.failed(done, "aborted")

    def copier(self, process: str, source: str) -> Iterator[None]:
        """Consume, transform, produce: one output for each input, with the group's position."""
        history = self.recorder(process)
        attempt = 0
        while self._goes_on():
            attempt += 1
            position = self.cluster.positions[source]
            records, after = self.cluster.read(source, position, 3)
            steps: list[Step] = [
                ["send", self.random.choice(OUTPUTS), f"{value}/{process}/{attempt}", None,
                 [source, offset]]
                for offset, value in records
            ]  # fmt: skip
            op = history.invoke(steps, transactional=True)
            yield
            txn = self.cluster.begin()
            done: list[Step] = [["poll", {source: records}]]
            for step in steps:
                offset = self.cluster.append(str(step[1]), step[2], txn)
                done.append([*step[:3], offset, step[4]])
                yield
            done.append(["commit", GROUP, {source: after}])
            state, told = self._fate()
            self.cluster.end(txn, state)
            if state == COMMITTED:
                self.cluster.positions[source] = after
            yield
            if told == "nothing":
                process, history = f"{process}x", self.recorder(f"{process}x")
            elif told == "ok":
                op.ok(done)
            else:
                getattr(op, told)(done, "lost")
                if told == "indeterminate":
                    history.reset("assign")

    def _final(self, process: str) -> None:
        history = self.recorder(process)
        positions = dict.fromkeys(self.cluster.logs, 0)
        while any(positions[key] < len(log) for key, log in self.cluster.logs.items()):
            op = history.invoke([["poll"]])
            polled = {}
            for key in positions:
                polled[key], positions[key] = self.cluster.read(key, positions[key], 7)
            op.ok([["poll", polled]])
        history.end(
            {
                key: {
                    "log_start": 0,
                    "last_stable": self.cluster.last_stable(key),
                    "high_watermark": len(log),
                    "log_end": len(log),
                }
                for key, log in self.cluster.logs.items()
            }
        )
        history.group_end(GROUP, self.cluster.positions)
