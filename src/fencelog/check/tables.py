"""Compact tables of a history: operations, sends and polls.

Millions of records fit because no record is a Python object: offsets are in arrays, keys and
processes are numbers, and a value that was polled ten times is stored once.
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import repeat
from math import inf

from fencelog.check.history import FINAL, Value

OPEN, OK, FAILED, INDETERMINATE = range(4)
"""Outcomes of an operation; one that never completed stays open, which is indeterminate."""
OUTCOMES = ("no answer", "ok", "failed", "indeterminate")
NONE = -1
"""No offset, operation or key."""
NEVER = (1 << 62) - 1
"""The event number of a completion that does not exist."""


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
    """The number of sends, from ``first_send`` on."""
    group: "array[int]" = field(default_factory=_ints)
    """The group for which it committed offsets, or ``NONE``."""
    committing: dict[int, float] = field(default_factory=dict)
    """Seconds of the ``committing`` event, if there is one."""
    errors: dict[int, str] = field(default_factory=dict)
    reset_inside: set[int] = field(default_factory=set)
    """Those whose polls need not follow each other."""

    def __len__(self) -> int:
        """How many there are."""
        return len(self.process)

    def add(self, process: int, number: int | str, *, transactional: bool, time: float) -> int:
        """Add an open operation without sends; return its index."""
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
    """Values that were sent, each once per key, and values that were polled but never sent."""

    key: "array[int]" = field(default_factory=_ints)
    value: list[Value] = field(default_factory=list)
    op: "array[int]" = field(default_factory=_ints)
    """``NONE`` if no known operation sent it."""
    told: "array[int]" = field(default_factory=_longs)
    """The acknowledged offset, or ``NONE``."""
    polled: "array[int]" = field(default_factory=_longs)
    """The offset at which a reader first saw it, or ``NONE``."""
    reader: "array[int]" = field(default_factory=_ints)
    """The first operation that saw it, or ``NONE``."""
    source_key: "array[int]" = field(default_factory=_ints)
    """Its input record; ``NONE`` without one."""
    source_offset: "array[int]" = field(default_factory=_longs)

    def __len__(self) -> int:
        """How many there are."""
        return len(self.key)

    def fill(self, op: int) -> None:
        """Complete the columns of sends whose key and value were added, for this operation."""
        more = len(self.key) - len(self.op)
        if not more:
            return
        self.op.extend(repeat(op, more))
        for column in (self.told, self.polled, self.reader, self.source_key, self.source_offset):
            column.extend(repeat(NONE, more))


@dataclass
class Runs:
    """Records of one key that one poll returned, in their order; in the order of completions."""

    op: "array[int]" = field(default_factory=_ints)
    key: "array[int]" = field(default_factory=_ints)
    start: "array[int]" = field(default_factory=_longs)
    """The start of its offsets in ``offsets``; they end at the start of the next run."""
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


class Names(dict[str, int]):
    """Strings as small numbers; to ask for a new one's number gives it one."""

    def __init__(self, on_new: Callable[[], None] | None = None) -> None:
        """None yet; ``on_new`` is called after each new one."""
        super().__init__()
        self.all: list[str] = []
        self._on_new = on_new

    def __missing__(self, name: str) -> int:
        """Give a new name its number."""
        self[name] = number = len(self.all)
        self.all.append(name)
        if self._on_new is not None:
            self._on_new()
        return number


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
    keys: Names = field(init=False)
    processes: Names = field(default_factory=Names)
    groups: Names = field(default_factory=Names)
    writers: list[dict[Value, int]] = field(default_factory=list)
    """For each key, the send of a value."""
    logs: list[dict[int, Value]] = field(default_factory=list)
    """For each key, the value that somebody polled first at an offset."""
    twice: dict[tuple[int, int], int] = field(default_factory=dict)
    """Sends and offsets, other than the first, at which their values were polled; first by whom."""
    conflicts: dict[tuple[int, int], int] = field(default_factory=dict)
    """Sends and offsets at which they were polled, after another value was; first by whom."""
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

    def __post_init__(self) -> None:
        """A key's tables exist as soon as the key has a number."""
        self.keys = Names(self._new_key)

    def _new_key(self) -> None:
        self.logs.append({})
        self.writers.append({})

    def is_final(self, process: int) -> bool:
        """Whether it is one of the readers that read everything at the end."""
        return self.processes.all[process].startswith(FINAL)

    def final_processes(self) -> list[int]:
        """Those of them that there are."""
        return [each for each in range(len(self.processes)) if self.is_final(each)]
