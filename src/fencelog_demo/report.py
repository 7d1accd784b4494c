"""The demo's closing: a table for the terminal and one HTML page that needs nothing beside it."""

import base64
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fencelog_demo.outcome import Blow, Hit, Life, Outcome, recovery
from fencelog_demo.processes import describe

CONSOLE_WIDTH = 100
HITS_SHOWN = 6
HITS_NAMED = 2

Line = tuple[str, str, str]
"""What is compared, exactly-once, at-least-once."""


def comparison(exact: Outcome, plain: Outcome) -> list[Line]:
    """The table of both runs, line by line."""

    def count(fault: str) -> tuple[str, str]:
        return f"{exact.found(fault):,}", f"{plain.found(fault):,}"

    def each(*values: object) -> tuple[str, str]:
        return str(values[0]), str(values[1])

    both = (exact, plain)
    kills = sum(blow.signal == "SIGKILL" for blow in exact.blows)
    strikes = f"{kills} + 1 zombie"
    survived = [sum(it.name in blow.recovered_s for blow in it.blows) for it in both]
    return [
        ("flights in the source", *count("rows_in")),
        ("records on the topic", *count("rows_out")),
        ("lost", *count("lost")),
        ("duplicated", *count("duplicated")),
        ("from aborted transactions", *count("aborted")),
        ("altered, or not in the source", *each(*(altered(it) for it in both))),
        ("monthly totals wrong", *each(*(totals(it) for it in both))),
        ("kills, and drivers woken as zombies", *each(strikes, strikes)),
        ("strikes survived", *each(*(f"{n} of {len(exact.blows)}" for n in survived))),
        ("the zombie was fenced by the broker", *each(*(yes_or_no(it.fenced) for it in both))),
        ("micro-batches", *each(*(it.batches for it in both))),
        ("seconds to the last commit", *each(*(f"{it.seconds:.1f}" for it in both))),
        ("flights per second, outages included", *each(*(f"{it.rows_per_s:,.0f}" for it in both))),
    ]


def yes_or_no(fact: bool) -> str:
    """A fact as a word."""
    return "yes" if fact else "no"


def altered(it: Outcome) -> str:
    """Events that differ from the source, or are not about any flight of it."""
    return f"{it.found('wrong') + it.found('foreign'):,}"


def totals(it: Outcome) -> str:
    """Totals that differ from the recomputation, out of all."""
    if not it.found("totals_checked"):
        return "-"
    return f"{it.found('totals_wrong')} of {it.found('totals_checked')}"


def print_table(outcomes: Sequence[Outcome], *, total_s: float) -> None:
    """Print the comparison and the strikes to standard output."""
    exact, plain = outcomes
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=CONSOLE_WIDTH)
    table = Table(title=f"One pipeline, two commit modes, the same strikes: {total_s:.0f} s in all")
    table.add_column("")
    table.add_column("exactly-once", justify="right", style="green")
    table.add_column("at-least-once", justify="right", style="yellow")
    for line in comparison(exact, plain):
        table.add_row(*line)
    console.print(table)
    strikes = Table(title="The strikes, and how long until the next exactly-once commit")
    for name in ("", "at", "what", "signal", "who: exit status", "again after"):
        strikes.add_column(name, justify="right" if name in {"at", "again after"} else "left")
    for blow in exact.blows:
        strikes.add_row(
            str(blow.number),
            f"{blow.at_s:.1f} s",
            blow.title,
            blow.signal,
            ", ".join(hit_text(hit) for hit in shown(blow, HITS_NAMED)),
            recovery(blow),
        )
    console.print(strikes)


def hit_text(hit: Hit) -> str:
    """``java 123: -9 (SIGKILL)``."""
    return f"{hit.name} {hit.pid}: {describe(hit.status)}"


def shown(blow: Blow, most: int) -> Sequence[Hit]:
    """The processes worth a line where a whole tree was hit: those whose end is known, Java first.

    How a worker ended is known to its daemon only, and the daemon dies with it.
    """
    return [hit for hit in blow.hits if hit.status is not None][:most]


def page(outcomes: Sequence[Outcome], png: bytes, *, total_s: float, quick: bool) -> str:
    """Return the report as one HTML document."""
    exact, plain = outcomes
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    image = base64.b64encode(png).decode()
    share = "every tenth flight of the file" if quick else "all flights of the file"
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8>",
        '<meta name=viewport content="width=device-width, initial-scale=1">',
        f"<title>fencelog demo: {exact.rows:,} flights</title><style>{style}</style></head>",
        "<body><main>",
        "<h1>Every flight exactly once, whatever was killed</h1>",
        f"<p class=quiet>New York's flights of 2013 ({share}), sent by a stock Kafka producer in "
        "transactions, joined with airline names and summed up by a PySpark pipeline, written to "
        f"<code>delays</code> and <code>delays-monthly</code>. {total_s:.0f} seconds in all. "
        f"{exact.aborted_rows:,} rows were sent in transactions that the producer aborted on "
        "purpose, and were sent again.</p>",
        verdict(exact, plain),
        "<h2>What the same strikes do to the same pipeline</h2>",
        "<p>The same query ran twice, side by side in the same drivers, over the same "
        f"{exact.rows:,} flights, and was hit by the same strikes, each when both stood at its "
        "point. They differ in the sink's option <code>delivery</code> and in nothing else. (The "
        "totals ran once: their newest record per key counts, so nothing could be doubled.)"
        f" Restarts that nobody planned: {exact.unplanned}.</p>",
        comparison_table(exact, plain),
        f'<img alt="Rows over time under both commit modes, and lives of the processes" '
        f'src="data:image/png;base64,{image}">',
        "<h2>The strikes</h2>",
        "<p>Each falls from another process at a point that the pipeline announces in its event "
        "log, and each in a later batch than the one before. The numbers are those of the chart."
        "</p>",
        blows_table(exact),
        "<h2>The processes</h2>",
        lives_table(exact),
        how_audited(exact),
        "<footer>Made by <code>./dev demo</code>. Event logs and process logs lie beside this "
        "page in <code>logs/</code>.</footer>",
        "</main></body></html>",
    ]
    return "\n".join(parts)


def verdict(exact: Outcome, plain: Outcome) -> str:
    """The figures that matter, large."""
    passed = bool(exact.audit.get("passed"))
    figures = [
        (f"{exact.found('rows_in'):,}", "flights in"),
        (f"{exact.found('rows_out'):,}", "events out"),
        (f"{exact.found('lost'):,}", "lost"),
        (f"{exact.found('duplicated'):,}", "duplicated"),
        (f"{len(exact.blows)}", "strikes survived"),
        (f"{plain.found('duplicated'):,}", "duplicated without transactions"),
    ]
    boxes = "".join(f"<div class=figure><b>{n}</b><span>{what}</span></div>" for n, what in figures)
    return (
        f'<div class="verdict{"" if passed else " failed"}">{boxes}</div>'
        f"<p class=mono>{escape(str(exact.audit.get('verdict', '')))}</p>"
    )


def table(head: Iterable[str], rows: Iterable[str]) -> str:
    """A table in a frame that scrolls on small screens."""
    return (
        f"<div class=scroll><table><thead><tr>{''.join(head)}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def comparison_table(exact: Outcome, plain: Outcome) -> str:
    """Both runs, line by line; what the demo is about stands out."""
    head = [
        "<th></th>",
        '<th class="number exact">exactly-once</th>',
        '<th class="number plain">at-least-once</th>',
    ]
    rows = []
    for what, ours, theirs in comparison(exact, plain):
        key = what in {"lost", "duplicated"}
        rows.append(
            f"<tr{' class=key' if key else ''}><td>{escape(what)}</td>"
            f'<td class="number{" exact" if key else ""}">{escape(ours)}</td>'
            f'<td class="number{" plain" if key else ""}">{escape(theirs)}</td></tr>'
        )
    return table(head, rows)


def blows_table(it: Outcome) -> str:
    """Strikes with pids, exit statuses and the time until the next commit."""
    head = [
        f"<th{' class=number' if name in {'at', 'next commit'} else ''}>{name}</th>"
        for name in ("", "at", "what", "signal", "batches", "who, and how it ended", "next commit")
    ]
    rows = []
    for blow in it.blows:
        hits = [
            f"<span class=mono>{escape(hit_text(hit))}</span>" for hit in shown(blow, HITS_SHOWN)
        ]
        more = len(blow.hits) - len(hits)
        if more > 0:
            hits.append(f"<span class=quiet>and {more} more of its workers</span>")
        woken = ""
        if blow.woken_s is not None:
            woken = f"<br><span class=quiet>woken with SIGCONT at {blow.woken_s:.1f} s</span>"
        batches = " and ".join(str(batch) for batch in blow.batches.values())
        rows.append(
            f"<tr><td><span class=disc>{blow.number}</span></td>"
            f"<td class=number>{blow.at_s:.1f} s</td><td>{escape(blow.title)}{woken}</td>"
            f"<td class=mono>{blow.signal}<br>from {blow.killer}</td><td>{batches}</td>"
            f"<td>{'<br>'.join(hits)}</td><td class=number>{recovery(blow)}</td></tr>"
        )
    return table(head, rows)


def lives_table(it: Outcome) -> str:
    """Every process that the run started."""
    head = [
        f"<th{' class=number' if name in {'pid', 'from', 'to'} else ''}>{name}</th>"
        for name in ("process", "pid", "from", "to", "exit status")
    ]
    return table(head, [life_row(life) for life in it.lives])


def life_row(life: Life) -> str:
    """One process."""
    end = "" if life.end_s is None else f"{life.end_s:.1f} s"
    killed = " killed" if (life.status or 0) < 0 else ""
    return (
        f"<tr><td>{escape(life.label)}</td><td class=number>{life.pid}</td>"
        f"<td class=number>{life.begin_s:.1f} s</td><td class=number>{end}</td>"
        f'<td class="mono{killed}">{escape(describe(life.status))}</td></tr>'
    )


def how_audited(it: Outcome) -> str:
    """What the audit did, for readers who believe nobody."""
    return (
        "<h2>How it was audited</h2>"
        "<p>The audit is a separate program. It shares no code with the pipeline: it reads "
        "<code>delays</code> with kafka-python at <code>read_committed</code>, the source files "
        "with Python's csv module, and holds each event against the flight that it is about, field "
        "by field. A flight is (year, month, day, carrier, flight, origin, sched_dep_time). "
        f"{it.aborted_rows:,} rows were sent first in transactions that the producer aborted on "
        "purpose; they carry a mark, and none of them may appear. "
        f"{it.found('totals_checked')} totals per carrier and month were recomputed from the "
        "source and compared with the newest record of each key on "
        "<code>delays-monthly</code>.</p>"
    )
