"""``./dev prove ecosystem [--write]``: frameworks of Kafka's ecosystem, each through kills.

Kafka Streams, Flink, quixstreams, faust, FastStream and bytewax copy a topic side by side on one
broker that is killed; then MirrorMaker 2 copies between two brokers, and Spark's own connector. Ten
minutes. Exit status 0: every record came out, and once where the tool promises that. ``--write``
keeps the dated report in ``docs/internals/proofs``.
"""

import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from fencelog.spark.java import JavaNotFoundError
from tests.clients.copying import Arena, Case
from tests.clients.install import NotInstalled
from tests.ecosystem import _mirror, _spark
from tests.ecosystem._cases import AtLeastOnce, Counted, OneMember
from tests.ecosystem._tools import started_by
from tests.proofs._report import commit, head, run_with_report
from tests.support.broker import BrokerProcess
from tests.support.jvm.host import JdkMissingError
from tests.support.jvm.jars import JarsMissingError

SETTINGS = "group.initial.rebalance.delay.ms=50\ngroup.min.session.timeout.ms=500\n"
KILLS, BETWEEN_S, STEP_S = 5, 15.0, 300.0
MISSING = (NotInstalled, JarsMissingError, JavaNotFoundError, JdkMissingError)
PROSE = """\
The frameworks copy a topic of four partitions, at once, on one broker in `os` mode that is
killed; their processes are killed with a transaction open, stopped, started again, join and
leave. Kafka Streams also counts behind a repartition topic: each key's counts must be 1, 2, 3
and so on. MirrorMaker 2 copies between two brokers while it and both of them are killed, and
brings a group's offsets. Spark's connector copies committed records into files (once) and into a
topic (at least once) while the driver and the broker are killed. faust is checked for at least
once: the guide says why.
"""


class Row(NamedTuple):
    """A tool and what came of it."""

    tool: str
    records: int
    killed_open: int
    verdict: str


CASES: dict[str, tuple[str, type[Case]]] = {
    "streams": ("Kafka Streams, `exactly_once_v2`, two members", Counted),
    "flink": ("Flink's exactly-once sink", OneMember),
    "quixstreams": ("quixstreams, `exactly-once`, two members", Case),
    "faust": ("faust-streaming, `exactly_once`", AtLeastOnce),
    "faststream": ("FastStream, at least once", AtLeastOnce),
    "bytewax": ("bytewax, at least once", AtLeastOnce),
}


def verdict_of(arena: Arena, case: Case) -> str:
    """``ok``, or what went wrong."""
    if failure := arena.failure(case.client):
        return repr(failure)
    try:
        case.check()
    except AssertionError as wrong:
        return str(wrong)
    return f"ok, {case.doubled} twice" if isinstance(case, AtLeastOnce) else "ok"


def frameworks(folder: Path) -> list[Row]:
    """All that copy from topic to topic."""
    rows = []
    with BrokerProcess(folder / "data", settings=SETTINGS) as broker:
        plans, cases = [], []
        for tool, (title, kind) in CASES.items():
            try:
                command = started_by(tool, folder / tool)
            except MISSING as missing:
                rows.append(Row(title, 0, 0, f"not installed: {missing}"))
                continue
            case = kind(tool, broker, folder / f"{tool}.log", step_s=STEP_S)
            cases.append((title, case))
            plans.append((case, command, None))
        arena = Arena(broker, KILLS, BETWEEN_S)
        arena.run(plans)
        for title, case in cases:
            rows.append(Row(title, len(case.values), case.killed_open, verdict_of(arena, case)))
    return rows


def alone(title: str, run: Callable[[Path], str], folder: Path) -> Row:
    """One that has its own brokers; ``run`` returns the number of records, and a remark."""
    folder.mkdir()
    try:
        records, _, remark = run(folder).partition(" ")
    except MISSING as missing:
        return Row(title, 0, 0, f"not installed: {missing}")
    except AssertionError as wrong:
        return Row(title, 0, 0, str(wrong))
    return Row(title, int(records), 0, f"ok{remark}")


def mirrored(folder: Path) -> str:
    """MirrorMaker 2."""
    return str(_mirror.mirrored(folder))


def by_spark(folder: Path) -> str:
    """Spark's own connector."""
    records, doubled = _spark.copied(folder)
    return f"{records} , {doubled} twice in the topic"


def prove(folder: Path, began: datetime) -> tuple[str, bool]:
    """Run all; the report, and whether it holds."""
    started = monotonic()
    rows = [
        *frameworks(folder),
        alone("MirrorMaker 2, exactly once", mirrored, folder / "mirror"),
        alone("Spark's Kafka connector", by_spark, folder / "spark"),
    ]
    holds = all(row.verdict.startswith("ok") for row in rows)
    lines = [
        *head(
            "Frameworks of the ecosystem through kills",
            began=began,
            holds=holds,
            summary=f"{len(rows)} tools, {monotonic() - started:.0f} s",
            again="`./dev prove ecosystem --write`",
            code=commit(),
        ),
        "",
        PROSE,
        "| tool | records | killed with a transaction open | verdict |",
        "|---|---:|---:|---|",
        *(f"| {row.tool} | {row.records:,} | {row.killed_open} | {row.verdict} |" for row in rows),
    ]
    return "\n".join(lines) + "\n", holds


def main(argv: Sequence[str]) -> int:
    """Run all; returns the exit status."""
    return run_with_report("ecosystem", __doc__, prove, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
