"""What the event log shows: processes, faults and recoveries, rows over time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fencelog_demo.events import Event
from fencelog_demo.plan import EXACTLY_ONCE, PIPELINES

Point = tuple[float, int]
"""Seconds since the stage began, and rows by then."""


@dataclass(frozen=True, kw_only=True)
class ProcessSpan:
    """A process of the stage, from its start to its end (None: it ran past the log's end)."""

    role: str
    label: str
    pid: int
    begin_s: float
    node: int = 1
    """Which broker it is, if it is one."""
    ready_s: float | None = None
    """When its first batch was written; None: ready from the start."""
    end_s: float | None = None
    status: int | None = None


@dataclass(frozen=True, kw_only=True)
class Target:
    """One process that got a fault's signal, and how it ended."""

    pid: int
    name: str
    status: int | None


@dataclass(frozen=True, kw_only=True)
class InjectedFault:
    """One fault of the plan, as it was injected."""

    number: int
    name: str
    title: str
    role: str
    signal: str
    batches: Mapping[str, int]
    """The batch in progress, by pipeline."""
    at_s: float
    killer: int
    targets: tuple[Target, ...]
    resumed_s: float | None
    recovered_s: Mapping[str, float]
    """When each pipeline committed its next batch after the fault; a pipeline that never did is
    absent."""


def recovery(fault: InjectedFault, pipeline: str = EXACTLY_ONCE) -> str:
    """How long until the pipeline committed its next batch."""
    at_s = fault.recovered_s.get(pipeline)
    return "never" if at_s is None else f"{at_s - fault.at_s:.1f} s"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One pipeline of the stage as the report shows it."""

    name: str
    rows: int
    seconds: float
    produced: tuple[Point, ...]
    visible: tuple[Point, ...]
    processes: tuple[ProcessSpan, ...]
    faults: tuple[InjectedFault, ...]
    aborted_rows: int
    batches: int
    unplanned: int
    resizes: int
    """Splits and merges, where the topics are streams."""
    fenced: bool
    audit: Mapping[str, object] = field(default_factory=dict)

    def found(self, fault: str) -> int:
        """A count of the audit; 0 where it has not run."""
        value = self.audit.get(fault, 0)
        assert isinstance(value, int), (fault, value)
        return value

    @property
    def rows_per_s(self) -> float:
        """Flights per second of the stage, outages included."""
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
        processes=processes(events, begin),
        faults=faults(events, begin),
        aborted_rows=max((event.number("aborted") for event in produced), default=0),
        batches=len({event.number("batch") for event in committed}),
        unplanned=sum(event.kind == "unplanned-restart" for event in events),
        resizes=sum(event.kind == "resized" for event in events),
        fenced=fenced_at(events, name) is not None,
    )


def fenced_at(events: Sequence[Event], pipeline: str) -> float | None:
    """When the broker refused the resumed zombie, if it did."""
    resumed = next((event.at for event in events if event.kind == "resumed"), None)
    refusals = [
        event.at
        for event in events
        if event.kind == "fenced" and event.text("pipeline") == pipeline
    ]
    return next((at for at in refusals if resumed is not None and at >= resumed), None)


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


def processes(events: Sequence[Event], begin: float) -> tuple[ProcessSpan, ...]:
    """The processes that the stage started."""
    ended = exits(events)
    steps = [event.at for event in events if event.kind == "reached"]
    found = []
    for event in events:
        if event.kind != "started":
            continue
        first = next((at - begin for at in steps if at > event.at), None)
        span = ProcessSpan(
            role=event.text("role"),
            label=event.text("label"),
            pid=event.number("pid"),
            begin_s=event.at - begin,
            node=max(event.number("node"), 1),
            ready_s=first if event.text("role") == "driver" else None,
        )
        if span.pid in ended:
            at, status = ended[span.pid]
            span = replace(span, end_s=at - begin, status=status)
        found.append(span)
    return tuple(found)


def faults(events: Sequence[Event], begin: float) -> tuple[InjectedFault, ...]:
    """The injected faults, each with the exit statuses of its targets."""
    ended = exits(events)
    resumed = [event.at for event in events if event.kind == "resumed"]
    commits = {name: [event.at for event in events if is_commit(event, name)] for name in PIPELINES}
    found: list[InjectedFault] = []
    for event in events:
        if event.kind != "injected":
            continue
        pids = event.facts["pids"]
        assert isinstance(pids, dict)
        targets = [
            Target(pid=int(pid), name=name, status=ended.get(int(pid), (0.0, None))[1])
            for pid, name in pids.items()
        ]
        batches = event.facts["batches"]
        assert isinstance(batches, dict)
        after = {name: [at for at in commits[name] if at > event.at] for name in batches}
        resumed_after = [at - begin for at in resumed if at > event.at]
        found.append(
            InjectedFault(
                number=len(found) + 1,
                name=event.text("fault"),
                title=event.text("title"),
                role=event.text("role"),
                signal=event.text("signal"),
                batches=batches,
                at_s=event.at - begin,
                killer=event.number("killer"),
                targets=tuple(targets),
                resumed_s=(
                    resumed_after[0]
                    if resumed_after and event.text("signal") == "SIGSTOP"
                    else None
                ),
                recovered_s={name: ats[0] - begin for name, ats in after.items() if ats},
            )
        )
    return tuple(found)
