"""What is kept of a history: compact tables of operations, sends and polls.

Millions of records fit because nothing of them is kept as an object of its own: offsets are in
arrays, keys and processes are numbers, and of a value that was polled ten times one is kept.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from fencelog.check.history import FINAL, Value

OPEN, OK, FAILED, INDETERMINATE = range(4)
"""How an operation ended; one that never completed stays open, and that is indeterminate too."""
OUTCOMES = ("no answer", "ok", "failed", "indeterminate")
NONE = -1
"""No offset, operation or key."""
NEVER = (1 << 62) - 1
"""The place in the history of a completion that does not exist."""


def _ints() -> "array[int]":
    return array("i")


def _longs() -> "array[int]":
    return array("q")


def _floats() -> "array[float]":
    return array("d")


@dataclass
class Ops:
    """Operations, in the order of their invocations."""

    process: "array[int]" = field(default_factory=_ints)
    number: list[int | str] = field(default_factory=list)
    transactional: bytearray = field(default_factory=bytearray)
    outcome: bytearray = field(default_factory=bytearray)
    invoked: "array[float]" = field(default_factory=_floats)
    """Seconds."""
    completed: "array[float]" = field(default_factory=_floats)
    """Seconds; infinite where there was no completion."""
    begun: "array[int]" = field(default_factory=_longs)
    """The event that invoked it, counted from 1."""
    ended: "array[int]" = field(default_factory=_longs)
    """The event that completed it, or ``NEVER``."""
    first_send: "array[int]" = field(default_factory=_longs)
    sends: "array[int]" = field(default_factory=_ints)
    """How many sends, from ``first_send`` on."""
    group: "array[int]" = field(default_factory=_ints)
    """The group that it committed positions of, or ``NONE``."""
    committing: dict[int, float] = field(default_factory=dict)
    """Seconds at which the commit was about to be asked for, where that was told."""
    errors: dict[int, str] = field(default_factory=dict)
    reset_inside: set[int] = field(default_factory=set)
    """Those whose polls need not follow each other."""

    def __len__(self) -> int:
        """How many there are."""
        return len(self.process)

    def add(self, process: int, number: int | str, *, transactional: bool, time: float) -> int:
        """One more, still open and without sends; its index."""
        self.process.append(process)
        self.number.append(number)
        self.transactional.append(transactional)
        self.outcome.append(OPEN)
        self.invoked.append(time)
        self.completed.append(inf)
        self.ended.append(NEVER)
        self.sends.append(0)
        self.group.append(NONE)
        return len(self.process) - 1

    def sends_of(self, op: int) -> range:
        """The sends that it invoked, in their order."""
        first = self.first_send[op]
        return range(first, first + self.sends[op])


@dataclass
class Sends:
    """Values that were sent, each once per key; and those that were polled but never sent."""

    key: "array[int]" = field(default_factory=_ints)
    value: list[Value] = field(default_factory=list)
    op: "array[int]" = field(default_factory=_ints)
    """``NONE`` where nobody is known to have sent it."""
    told: "array[int]" = field(default_factory=_longs)
    """The offset that the sender was told, or ``NONE``."""
    polled: "array[int]" = field(default_factory=_longs)
    """The offset at which somebody saw it first, or ``NONE``."""
    reader: "array[int]" = field(default_factory=_ints)
    """The operation that saw it first, or ``NONE``."""
    source_key: "array[int]" = field(default_factory=_ints)
    """The input record that it was made from; ``NONE`` where none was named."""
    source_offset: "array[int]" = field(default_factory=_longs)

    def __len__(self) -> int:
        """How many there are."""
        return len(self.op)

    def add(self, key: int, value: Value, op: int) -> int:
        """One more that nobody has seen; its index."""
        self.key.append(key)
        self.value.append(value)
        self.op.append(op)
        self.told.append(NONE)
        self.polled.append(NONE)
        self.reader.append(NONE)
        self.source_key.append(NONE)
        self.source_offset.append(NONE)
        return len(self.op) - 1


@dataclass
class Runs:
    """Records of one key that one poll returned, in their order; in the order of completions."""

    op: "array[int]" = field(default_factory=_ints)
    key: "array[int]" = field(default_factory=_ints)
    start: "array[int]" = field(default_factory=_longs)
    """Where its offsets begin in ``offsets``; they end where the next run's begin."""
    step: "array[int]" = field(default_factory=_ints)
    """The step of the operation."""
    offsets: "array[int]" = field(default_factory=_longs)

    def __len__(self) -> int:
        """How many there are."""
        return len(self.op)

    def end(self, run: int) -> int:
        """Where its offsets end in ``offsets``."""
        after = run + 1
        return self.start[after] if after < len(self.start) else len(self.offsets)

    def offsets_of(self, run: int) -> "array[int]":
        """Its offsets, in the order in which they were shown."""
        return self.offsets[self.start[run] : self.end(run)]


class Names:
    """Strings as small numbers."""

    def __init__(self) -> None:
        """None yet."""
        self.all: list[str] = []
        self._index: dict[str, int] = {}

    def __len__(self) -> int:
        """How many there are."""
        return len(self.all)

    def __iter__(self) -> Iterator[str]:
        """In the order of their numbers."""
        return iter(self.all)

    def number(self, name: str) -> int:
        """Its number; a new one for a new name."""
        index = self._index.get(name)
        if index is None:
            index = self._index[name] = len(self.all)
            self.all.append(name)
        return index

    def find(self, name: str) -> int | None:
        """Its number, if it was ever given one."""
        return self._index.get(name)


@dataclass(frozen=True)
class Clash:
    """A poll that contradicts an earlier one: one value at two offsets, or one offset with two."""

    send: int
    """What was seen now."""
    offset: int
    """Where it was seen now."""
    op: int
    """Who saw it now."""


@dataclass(frozen=True)
class End:
    """Where a partition ended; offsets that were not told are None."""

    time: float
    log_start: int | None
    last_stable: int | None
    high_watermark: int | None
    log_end: int | None


@dataclass(frozen=True)
class Fault:
    """Something that was broken on purpose."""

    time: float
    until: float | None
    what: str


@dataclass
class History:
    """All tables; ``fencelog.check.intake`` fills them."""

    ops: Ops = field(default_factory=Ops)
    sends: Sends = field(default_factory=Sends)
    runs: Runs = field(default_factory=Runs)
    keys: Names = field(default_factory=Names)
    processes: Names = field(default_factory=Names)
    groups: Names = field(default_factory=Names)
    writers: list[dict[Value, int]] = field(default_factory=list)
    """For each key, the send of a value."""
    logs: list[dict[int, Value]] = field(default_factory=list)
    """For each key, the value that somebody polled first at an offset."""
    twice: list[Clash] = field(default_factory=list)
    """Values that were polled at two offsets."""
    conflicts: list[Clash] = field(default_factory=list)
    """Offsets at which two values were polled."""
    resets: list[tuple[int, int]] = field(default_factory=list)
    """(runs that were there before, process)."""
    ends: dict[int, list[End]] = field(default_factory=dict)
    """For each key, in the order in which they were told."""
    group_ends: dict[int, dict[int, int]] = field(default_factory=dict)
    """For each group the positions that it had committed in the end."""
    faults: list[Fault] = field(default_factory=list)
    meta: dict[str, object] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    """What a reader of the verdict should know about how the history was read."""

    def key(self, name: str) -> int:
        """The number of a key; its tables exist from here on."""
        key = self.keys.number(name)
        if key == len(self.logs):
            self.logs.append({})
            self.writers.append({})
        return key

    def is_final(self, process: int) -> bool:
        """Whether it is one of the readers that read everything at the end."""
        return self.processes.all[process].startswith(FINAL)

    def final_processes(self) -> list[int]:
        """Those of them that there are."""
        return [each for each in range(len(self.processes)) if self.is_final(each)]
