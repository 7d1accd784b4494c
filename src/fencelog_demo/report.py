"""The demo's report: tables for the terminal and one self-contained HTML page."""

import base64
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from rich.console import Console
from rich.table import Table

from fencelog_demo.outcome import InjectedFault, Outcome, Target, recovery
from fencelog_demo.processes import describe

CONSOLE_WIDTH = 100
TARGETS_SHOWN = 6
TARGETS_NAMED = 2

Line = tuple[str, str, str]
"""What is compared, exactly-once, at-least-once."""


def comparison(exact: Outcome, plain: Outcome) -> list[Line]:
    """The table of both runs, line by line."""

    def count(fault: str) -> tuple[str, str]:
        return f"{exact.found(fault):,}", f"{plain.found(fault):,}"

    def each(*values: object) -> tuple[str, str]:
        return str(values[0]), str(values[1])

    both = (exact, plain)
    kills = sum(fault.signal == "SIGKILL" for fault in exact.faults)
    faults = f"{kills} + 1 zombie"
    streams = [
        ("segments split or merged", *each(exact.resizes, plain.resizes)),
        ("out of the order of their carrier", *each(f"{exact.found('out_of_order'):,}", "-")),
    ]
    survived = [sum(it.name in fault.recovered_s for fault in it.faults) for it in both]
    return [
        ("flights in the source", *count("rows_in")),
        ("records on the topic", *count("rows_out")),
        ("lost", *count("lost")),
        ("duplicated", *count("duplicated")),
        ("from aborted transactions", *count("aborted")),
        ("altered, or not in the source", *each(*(altered(it) for it in both))),
        *(streams if exact.resizes else ()),
        ("monthly totals wrong", *each(*(totals(it) for it in both))),
        ("kills, and drivers resumed as zombies", *each(faults, faults)),
        ("faults survived", *each(*(f"{n} of {len(exact.faults)}" for n in survived))),
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
    """Print the comparison and the faults to standard output."""
    exact, plain = outcomes
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=CONSOLE_WIDTH)
    table = Table(
        title=f"One pipeline, two delivery modes, the same faults: {total_s:.0f} s in all"
    )
    table.add_column("")
    table.add_column("exactly-once", justify="right", style="green")
    table.add_column("at-least-once", justify="right", style="yellow")
    for line in comparison(exact, plain):
        table.add_row(*line)
    console.print(table)
    faults = Table(title="The faults, and how long until the next exactly-once commit")
    for name in ("", "at", "what", "signal", "process: exit status", "recovered after"):
        faults.add_column(name, justify="right" if name in {"at", "recovered after"} else "left")
    for fault in exact.faults:
        faults.add_row(
            str(fault.number),
            f"{fault.at_s:.1f} s",
            fault.title,
            fault.signal,
            ", ".join(target_text(target) for target in shown(fault, TARGETS_NAMED)),
            recovery(fault),
        )
    console.print(faults)


def target_text(target: Target) -> str:
    """``java 123: -9 (SIGKILL)``."""
    return f"{target.name} {target.pid}: {describe(target.status)}"


def shown(fault: InjectedFault, most: int) -> Sequence[Target]:
    """The processes to list where a whole tree was killed: those whose end is known, Java first.

    Only its daemon knows how a worker ended, and the daemon is killed with it.
    """
    return [target for target in fault.targets if target.status is not None][:most]


def page(outcomes: Sequence[Outcome], png: bytes, *, total_s: float, quick: bool) -> str:
    """Return the report as one HTML document."""
    exact, plain = outcomes
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"grouped": "{:,}".format, "seconds": "{:.1f} s".format}
    return templates.get_template("report.html.jinja").render(
        exact=exact,
        plain=plain,
        lines=comparison(exact, plain),
        image=base64.b64encode(png).decode(),
        total_s=total_s,
        quick=quick,
        targets_shown=TARGETS_SHOWN,
        shown=shown,
        target_text=target_text,
        recovery=recovery,
        describe=describe,
    )
