"""The demo's chart: visible flights over time under both delivery modes, and the processes."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fencelog_demo.outcome import InjectedFault, Outcome, Point, ProcessSpan, recovery
from fencelog_demo.theme import COLORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_IN = 13.0
HEIGHT_IN = 9.2
DPI = 150
KEY_HEIGHT = 0.057
LANES = ("driver", "producer", "broker")


def draw(outcomes: Sequence[Outcome]) -> bytes:
    """Return the chart as PNG. The first outcome is the exactly-once one."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    exact, plain = outcomes
    style: dict[str, Any] = {
        "font.family": "DejaVu Sans",
        "font.size": 10,
        "text.color": COLORS["ink"],
        "axes.labelcolor": COLORS["quiet"],
        "xtick.color": COLORS["quiet"],
        "ytick.color": COLORS["quiet"],
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), dpi=DPI, facecolor=COLORS["paper"])
        rows, lower = figure.subplots(
            2, 1, sharex=True, gridspec_kw={"height_ratios": [2.6, 1.2], "hspace": 0.16}
        )
        figure.subplots_adjust(left=0.085, right=0.97, top=0.90, bottom=0.135)
        draw_key(figure, exact)
        figure.text(
            0.085,
            0.948,
            f"{exact.rows:,} flights, {len(exact.faults)} faults, two delivery modes",
            size=17,
            weight="bold",
        )
        figure.text(
            0.085,
            0.918,
            "What a read_committed consumer of the topic delays can see, second by second; "
            "below, the processes",
            color=COLORS["quiet"],
            size=10.5,
        )
        draw_rows(rows, exact, plain)
        draw_processes(lower, exact, COLORS["driver"])
        lower.set_xlabel("seconds since the start")
        ends = [span.end_s for span in exact.processes if span.end_s is not None]
        rows.set_xlim(0, 1.03 * max([exact.seconds, plain.seconds, *ends]))
        file = io.BytesIO()
        figure.savefig(file, format="png", facecolor=figure.get_facecolor())
    return file.getvalue()


def draw_key(figure: "Figure", exact: Outcome) -> None:
    """What the numbers mean, in two columns at the bottom."""
    rows = max(3, -(-len(exact.faults) // 2))
    for place, fault in enumerate(exact.faults):
        column, row = divmod(place, rows)
        x, y = 0.097 + 0.42 * column, 0.014 + KEY_HEIGHT * (rows - 1 - row) / (rows - 1)
        look = {"boxstyle": "circle,pad=0.25", "facecolor": COLORS["kill"], "edgecolor": "none"}
        white = COLORS["paper"]
        figure.text(
            x - 0.012, y, str(fault.number), size=7.5, color=white, weight="bold", bbox=look
        )
        again = recovery(fault)
        text = f"{fault.signal} to {fault.title}; next commit after {again}"
        figure.text(x + 0.006, y, text, size=9, color=COLORS["quiet"])


def plain_axes(axes: "Axes") -> None:
    """No frame, no ticks' marks, a quiet grid."""
    axes.set_facecolor(COLORS["paper"])
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(COLORS["line"])
    axes.tick_params(length=0)
    axes.set_axisbelow(True)


def extended(points: Sequence[Point], until: float) -> tuple[list[float], list[int]]:
    """Times and rows, the last value held until the end."""
    held = [*points, (max(until, points[-1][0]), points[-1][1])] if points else [(0.0, 0)]
    return [at for at, _ in held], [rows for _, rows in held]


def draw_rows(axes: "Axes", exact: Outcome, plain: Outcome) -> None:
    """Rows over time: sent, and visible under each mode."""
    plain_axes(axes)
    axes.grid(axis="y", color=COLORS["grid"], linewidth=0.8)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    end = max(exact.seconds, plain.seconds)
    axes.axhline(exact.rows, color=COLORS["ink"], linewidth=1, linestyle=(0, (2, 3)))
    axes.plot(
        *extended(exact.produced, exact.seconds),
        color=COLORS["sent"],
        linewidth=1.6,
        label="committed to flights by the producer",
    )
    seconds, rows = extended(plain.visible, end)
    axes.step(
        seconds,
        rows,
        where="post",
        color=COLORS["plain"],
        linewidth=2.2,
        label="visible on delays, at-least-once",
    )
    axes.fill_between(
        seconds,
        exact.rows,
        rows,
        where=[count > exact.rows for count in rows],
        step="post",
        color=COLORS["plain"],
        alpha=0.16,
        linewidth=0,
    )
    axes.step(
        *extended(exact.visible, end),
        where="post",
        color=COLORS["exact"],
        linewidth=2.8,
        label="visible on delays, exactly-once",
    )
    top = max([exact.rows, *rows])
    axes.set_ylim(0, 1.17 * top)
    write_verdicts(axes, exact, plain, (end, top))
    for fault in exact.faults:
        number_mark(axes, fault, 1.13 * top)
    axes.legend(loc="upper left", frameon=False, bbox_to_anchor=(0.0, 0.92), labelspacing=0.6)


def write_verdicts(
    axes: "Axes", exact: Outcome, plain: Outcome, corner: tuple[float, float]
) -> None:
    """What the audit found under each mode, at the right end: ``corner`` is above all rows."""
    end, top = corner
    duplicated = plain.found("duplicated")
    axes.annotate(
        f"at-least-once: {duplicated:,} duplicated",
        corner,
        xytext=(0, 7),
        textcoords="offset points",
        ha="right",
        color=COLORS["plain"],
        weight="bold",
    )
    lost, twice = exact.found("lost"), exact.found("duplicated")
    axes.annotate(
        f"exactly-once: {lost} lost, {twice} duplicated",
        (end, 0.07 * top),
        ha="right",
        color=COLORS["exact"],
        weight="bold",
    )


def number_mark(axes: "Axes", fault: InjectedFault, height: float) -> None:
    """A fault's number in a disc, on a line through all heights."""
    axes.axvline(fault.at_s, color=COLORS["kill"], linewidth=0.9, alpha=0.45, linestyle=":")
    look = {"boxstyle": "circle,pad=0.28", "facecolor": COLORS["kill"]}
    axes.text(
        fault.at_s,
        height,
        str(fault.number),
        ha="center",
        va="center",
        size=8.5,
        weight="bold",
        color=COLORS["paper"],
        bbox={**look, "edgecolor": COLORS["paper"]},
        zorder=6,
    )


def draw_processes(axes: "Axes", outcome: Outcome, color: str) -> None:
    """When each process ran: one lane for each role, and a second one for a second driver."""
    plain_axes(axes)
    brokers = max((span.node for span in outcome.processes), default=1)
    names = ["broker"] if brokers == 1 else [f"broker {node + 1}" for node in range(brokers)]
    lanes = [*names, "producer", "driver", "its successor"]
    axes.set_yticks(range(len(lanes)), lanes)
    axes.set_ylim(len(lanes) - 0.4, -0.9)
    frozen = frozen_of(outcome)
    for span in outcome.processes:
        if span.role in LANES:
            lane = {"broker": span.node - 1, "producer": brokers, "driver": brokers + 1}[span.role]
            if frozen and span.role == "driver" and span.begin_s >= frozen.at_s:
                lane += 1
            draw_process(axes, span, outcome, lane, color)
    nodes = {span.pid: span.node for span in outcome.processes}
    for fault in outcome.faults:
        hit = [nodes.get(target.pid, 1) for target in fault.targets]
        number_mark(axes, fault, hit[0] - 1 if fault.role == "broker" and hit else brokers + 1)


def frozen_of(outcome: Outcome) -> InjectedFault | None:
    """The fault that froze a driver, if there was one."""
    return next((fault for fault in outcome.faults if fault.signal == "SIGSTOP"), None)


def draw_process(axes: "Axes", span: ProcessSpan, outcome: Outcome, lane: int, color: str) -> None:
    """One process as a bar: pale while it starts, hatched while it is frozen, red as a zombie."""
    end = span.end_s if span.end_s is not None else outcome.seconds
    frozen = frozen_of(outcome)
    shade = {"broker": COLORS["broker"], "producer": COLORS["sent"], "driver": color}[span.role]
    working = min(end, span.ready_s if span.ready_s is not None else span.begin_s)
    bar(axes, lane, span.begin_s, working, color=shade, alpha=0.35)
    if frozen is None or span.pid not in {target.pid for target in frozen.targets}:
        bar(axes, lane, working, end, color=shade, alpha=0.9)
        return
    resumed = frozen.resumed_s if frozen.resumed_s is not None else end
    bar(axes, lane, working, frozen.at_s, color=shade, alpha=0.9)
    bar(axes, lane, frozen.at_s, resumed, facecolor=COLORS["paper"], hatch="////", edgecolor=shade)
    bar(axes, lane, resumed, end, color=COLORS["kill"])
    box = {"facecolor": COLORS["paper"], "edgecolor": "none", "pad": 1.5}
    middle = (frozen.at_s + resumed) / 2
    axes.text(middle, lane, "frozen", ha="center", va="center", size=8, bbox=box)


def bar(axes: "Axes", lane: float, begin: float, end: float, **look: Any) -> None:  # noqa: ANN401
    """A part of a span; nothing where it has no length."""
    if end > begin:
        look = {"edgecolor": COLORS["paper"], **look}
        axes.barh(lane, end - begin, left=begin, height=0.56, linewidth=1.2, **look)
