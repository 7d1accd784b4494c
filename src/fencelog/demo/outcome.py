"""What a stage's event log tells: lives of processes, blows and recoveries, rows over time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fencelog.demo.events import Event

Point = tuple[float, int]
"""Seconds since the stage began, and rows by then."""


@dataclass(frozen=True, kw_only=True)
class Life:
    """A process of the stage, from its start to its end (None: it outlived the log)."""

    role: str
    label: str
    pid: int
    begin_s: float
    ready_s: float | None = None
    """When its first batch was written; None: it is taken to be ready from the start."""
    end_s: float | None = None
    status: int | None = None


@dataclass(frozen=True, kw_only=True)
class Hit:
    """One process that a blow hit, and how it ended."""

    pid: int
    name: str
    status: int | None


@dataclass(frozen=True, kw_only=True)
class Blow:
    """One strike of the plan as it fell."""

    number: int
    strike: str
    title: str
    role: str
    signal: str
    batch: int
    at_s: float
    killer: int
    hits: tuple[Hit, ...]
    woken_s: float | None
    recovered_s: float | None
    """When the next batch was committed after the blow; None: never."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A stage as the report shows it."""

    name: str
    delivery: str
    rows: int
    seconds: float
    produced: tuple[Point, ...]
    visible: tuple[Point, ...]
    lives: tuple[Life, ...]
    blows: tuple[Blow, ...]
    aborted_rows: int
    batches: int
    unplanned: int
    fenced: bool
    audit: Mapping[str, object] = field(default_factory=dict)

    def found(self, fault: str) -> int:
        """A count of the audit; 0 where it has not run."""
        value = self.audit.get(fault, 0)
        assert isinstance(value, int), (fault, value)
        return value

    @property
    def rows_per_s(self) -> float:
        """Flights through the whole path for each second of the stage, outages included."""
        return self.rows / self.seconds if self.seconds else 0.0


def outcome(name: str, delivery: str, rows: int, events: Sequence[Event]) -> Outcome:
    """Read the log of a stage."""
    begin = events[0].at
    end = next((event.at for event in events if event.kind == "over"), events[-1].at)
    committed = [event for event in events if is_commit(event)]
    return Outcome(
        name=name,
        delivery=delivery,
        rows=rows,
        seconds=end - begin,
        produced=tuple(
            (event.at - begin, event.number("rows")) for event in events if event.kind == "produced"
        ),
        visible=visible(events, begin, delivery),
        lives=lives(events, begin),
        blows=blows(events, begin),
        aborted_rows=max(
            (each.number("aborted") for each in events if each.kind == "produced"), default=0
        ),
        batches=len({event.number("batch") for event in committed}),
        unplanned=sum(event.kind == "unplanned-restart" for event in events),
        fenced=any(event.kind == "zombie-ended" and event.facts.get("fenced") for event in events),
    )


def is_commit(event: Event) -> bool:
    """Whether this says that a batch of ``delays`` is committed."""
    return event.kind == "reached" and event.text("point") == "after-commit"


def visible(events: Sequence[Event], begin: float, delivery: str) -> tuple[Point, ...]:
    """Rows that a consumer can see over time: with each commit, or with each task that wrote."""
    points: list[Point] = [(0.0, 0)]
    seen: set[int] = set()
    total = 0
    for event in events:
        if event.kind != "reached":
            continue
        if delivery == "exactly-once":
            batch = event.number("batch")
            if not is_commit(event) or batch in seen:
                continue
            seen.add(batch)
        elif event.text("point") != "task-written":
            continue
        total += event.number("tally")
        points.append((event.at - begin, total))
    return tuple(points)


def exits(events: Sequence[Event]) -> dict[int, tuple[float, int]]:
    """When and how each process ended, by pid."""
    return {
        event.number("pid"): (event.at, event.number("status"))
        for event in events
        if event.kind == "exited"
    }


def lives(events: Sequence[Event], begin: float) -> tuple[Life, ...]:
    """The processes that the stage started."""
    ended = exits(events)
    steps = [event.at for event in events if event.kind == "reached"]
    found = []
    for event in events:
        if event.kind != "started":
            continue
        first = next((at - begin for at in steps if at > event.at), None)
        life = Life(
            role=event.text("role"),
            label=event.text("label"),
            pid=event.number("pid"),
            begin_s=event.at - begin,
            ready_s=first if event.text("role") == "driver" else None,
        )
        if life.pid in ended:
            at, status = ended[life.pid]
            life = replace(life, end_s=at - begin, status=status)
        found.append(life)
    return tuple(found)


def blows(events: Sequence[Event], begin: float) -> tuple[Blow, ...]:
    """The strikes that fell, each with the fate of those it hit."""
    ended = exits(events)
    woken = [event.at for event in events if event.kind == "woken"]
    commits = [event.at for event in events if is_commit(event)]
    found: list[Blow] = []
    for event in events:
        if event.kind != "struck":
            continue
        pids = event.facts["pids"]
        assert isinstance(pids, dict)
        hits = [
            Hit(pid=int(pid), name=name, status=ended.get(int(pid), (0.0, None))[1])
            for pid, name in pids.items()
        ]
        after = [at - begin for at in commits if at > event.at]
        wake = [at - begin for at in woken if at > event.at]
        found.append(
            Blow(
                number=len(found) + 1,
                strike=event.text("strike"),
                title=event.text("title"),
                role=event.text("role"),
                signal=event.text("signal"),
                batch=event.number("batch"),
                at_s=event.at - begin,
                killer=event.number("killer"),
                hits=tuple(hits),
                woken_s=wake[0] if wake and event.text("signal") == "SIGSTOP" else None,
                recovered_s=after[0] if after else None,
            )
        )
    return tuple(found)
