"""What the event log tells: lives of processes, blows and recoveries, rows over time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fencelog_demo.events import Event
from fencelog_demo.plan import EXACTLY_ONCE, PIPELINES

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
    batches: Mapping[str, int]
    """The batch that was hit, by pipeline."""
    at_s: float
    killer: int
    hits: tuple[Hit, ...]
    woken_s: float | None
    recovered_s: Mapping[str, float]
    """When each pipeline committed its next batch after the blow; a pipeline that never did is
    not in it."""


def recovery(blow: Blow, pipeline: str = EXACTLY_ONCE) -> str:
    """How long until the pipeline committed its next batch."""
    at_s = blow.recovered_s.get(pipeline)
    return "never" if at_s is None else f"{at_s - blow.at_s:.1f} s"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One pipeline of the stage as the report shows it."""

    name: str
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


def outcome(name: str, rows: int, events: Sequence[Event]) -> Outcome:
    """Read the log for one pipeline."""
    begin = events[0].at
    committed = [event for event in events if is_commit(event, name)]
    end = committed[-1].at if committed else events[-1].at
    produced = [event for event in events if event.kind == "produced"]
    return Outcome(
        name=name,
        rows=rows,
        seconds=end - begin,
        produced=tuple((event.at - begin, event.number("rows")) for event in produced),
        visible=visible(events, begin, name),
        lives=lives(events, begin),
        blows=blows(events, begin),
        aborted_rows=max((event.number("aborted") for event in produced), default=0),
        batches=len({event.number("batch") for event in committed}),
        unplanned=sum(event.kind == "unplanned-restart" for event in events),
        fenced=fenced_at(events, name) is not None,
    )


def fenced_at(events: Sequence[Event], pipeline: str) -> float | None:
    """When the broker refused the woken zombie, if it did."""
    woken = next((event.at for event in events if event.kind == "woken"), None)
    refusals = [
        event.at
        for event in events
        if event.kind == "fenced" and event.text("pipeline") == pipeline
    ]
    return next((at for at in refusals if woken is not None and at >= woken), None)


def is_commit(event: Event, pipeline: str) -> bool:
    """Whether this says that a batch of this pipeline is committed."""
    at_commit = event.kind == "reached" and event.text("point") == "after-commit"
    return at_commit and event.text("pipeline") == pipeline


def visible(events: Sequence[Event], begin: float, pipeline: str) -> tuple[Point, ...]:
    """Rows that a consumer can see over time: with each commit, or with each task that wrote."""
    points: list[Point] = [(0.0, 0)]
    seen: set[int] = set()
    total = 0
    for event in events:
        if event.kind != "reached" or event.text("pipeline") != pipeline:
            continue
        if pipeline == EXACTLY_ONCE:
            batch = event.number("batch")
            if not is_commit(event, pipeline) or batch in seen:
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
    commits = {name: [event.at for event in events if is_commit(event, name)] for name in PIPELINES}
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
        batches = event.facts["batches"]
        assert isinstance(batches, dict)
        after = {name: [at for at in commits[name] if at > event.at] for name in batches}
        wake = [at - begin for at in woken if at > event.at]
        found.append(
            Blow(
                number=len(found) + 1,
                strike=event.text("strike"),
                title=event.text("title"),
                role=event.text("role"),
                signal=event.text("signal"),
                batches=batches,
                at_s=event.at - begin,
                killer=event.number("killer"),
                hits=tuple(hits),
                woken_s=wake[0] if wake and event.text("signal") == "SIGSTOP" else None,
                recovered_s={name: ats[0] - begin for name, ats in after.items() if ats},
            )
        )
    return tuple(found)
