"""``python -m fencelog_demo``: the main job, from an empty directory to the audit's last line."""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fencelog.client.blocking import Client
from fencelog_demo import chart, cluster, data, report
from fencelog_demo.outcome import Outcome, outcome
from fencelog_demo.plan import AT_LEAST_ONCE, EXACTLY_ONCE, PIPELINES
from fencelog_demo.processes import adopt_orphans, send, tree
from fencelog_demo.screen import Screen
from fencelog_demo.settings import COMPARED
from fencelog_demo.stage import Setup, Stage, StageError

PAUSE_S = 0.03
STAGE_S = 600.0
AUDIT_S = 180.0
QUICK_EVERY = 10
PRODUCE_S = 24.0
QUICK_PRODUCE_S = 12.0
LOG_LINES = 25


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What the user asked for."""

    quick: bool
    cluster: bool
    streams: bool
    output: Path
    keep: bool

    @property
    def every(self) -> int:
        """Every n-th flight is taken."""
        return QUICK_EVERY if self.quick else 1


def choice(arguments: Sequence[str] | None) -> Choice:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="./dev demo",
        description="Send New York's flights of 2013 through an exactly-once Spark pipeline that "
        "is killed on the way, and audit the result.",
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the flights")
    parser.add_argument("--cluster", action="store_true", help="three brokers on an etcd")
    parser.add_argument(
        "--streams", action="store_true", help="topics are streams, which split and merge"
    )
    parser.add_argument("--output", type=Path, default=Path("demo-output"), metavar="DIR")
    parser.add_argument("--keep", action="store_true", help="keep the brokers' data and all logs")
    return Choice(**vars(parser.parse_args(arguments)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo. The exit status is 0 if the audit passes and the demo showed its point."""
    asked = choice(arguments)
    etcd = cluster.etcd_program() if asked.cluster else ""
    if etcd is None:
        sys.stderr.write(f"demo: {cluster.HOW_TO_GET_ETCD}\n")
        return 1
    asked.output.mkdir(parents=True, exist_ok=True)
    adopt_orphans()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a clean end too
    work = Path(tempfile.mkdtemp(prefix="fencelog-demo-"))
    try:
        status = run(asked, work, etcd)
    except StageError as problem:
        sys.stderr.write(f"demo: {problem}\n")
        show_logs(work)
        status = 1
    except KeyboardInterrupt:
        sys.stderr.write("demo: stopped\n")
        status = 130
    finally:
        # Whatever still runs, adopted orphans included.
        send(signal.SIGKILL, tree(os.getpid())[:0:-1])
    keep_logs(work, asked.output)
    if asked.keep or status not in {0, 130}:
        sys.stderr.write(f"demo: data and logs are kept in {work}\n")
    else:
        shutil.rmtree(work, ignore_errors=True)
    return status


def run(asked: Choice, work: Path, etcd: str) -> int:
    """The stage, both audits, the report; prints the table and, last, the audit's line.

    ``etcd``: the program, for a cluster.
    """
    begun = time.time()
    rows = -(-data.flights().num_rows // asked.every)
    produce_s = QUICK_PRODUCE_S if asked.quick else PRODUCE_S
    folder = work / "stage"
    stage = Stage(
        Setup(
            every=asked.every,
            rows=rows,
            folder=folder,
            produce_s=produce_s,
            etcd=etcd,
            streams=asked.streams,
        )
    )
    with Screen(rows) as screen:
        screen.say(f"{rows} flights, exactly-once and at-least-once under the same faults")
        follow(stage, screen, begun)
        screen.say(f"{time.time() - begun:6.1f} s  audit: reading with kafka-python")
        audits = run_audits(stage)
        hanging = left_hanging(stage.address)
    stage.close()
    outcomes = [
        replace(outcome(name, rows, stage.events), audit=audits[name][0]) for name in PIPELINES
    ]
    total_s = time.time() - begun
    png = chart.draw(outcomes)
    (asked.output / "chart.png").write_bytes(png)
    page = report.page(outcomes, png, total_s=total_s, quick=asked.quick)
    (asked.output / "report.html").write_text(page, encoding="utf-8")
    report.print_table(outcomes, total_s=total_s)
    sys.stdout.write(f"report: {asked.output / 'report.html'}\n")
    problems = [*hanging, *shortcomings(outcomes, streams=asked.streams)]
    for problem in problems:
        sys.stderr.write(f"demo: {problem}\n")
    sys.stdout.write(f"{outcomes[0].audit['verdict']}\n")
    sys.stdout.flush()
    return audits[EXACTLY_ONCE][1] or (1 if problems else 0)


def follow(stage: Stage, screen: Screen, begun: float) -> None:
    """Step until the stage is done. Raises StageError."""
    deadline = time.monotonic() + STAGE_S
    while not stage.done:
        screen.show(stage, stage.step(), begun)
        if time.monotonic() > deadline:
            raise StageError(f"the pipelines were not done in {STAGE_S:.0f} s")
        time.sleep(PAUSE_S)


def run_audits(stage: Stage) -> dict[str, tuple[dict[str, object], int]]:
    """Audit both pipelines at once, each in a process; findings and exit status of each."""
    topics = {EXACTLY_ONCE: ["delays"], AT_LEAST_ONCE: [COMPARED, "--without-totals"]}
    if stage.setup.streams:
        topics[EXACTLY_ONCE].append("--in-order")
    running = {}
    for name, topic in topics.items():
        findings = stage.setup.folder / f"audit-{name}.json"
        command = [sys.executable, "-m", "fencelog_demo.audit", "--every", str(stage.setup.every)]
        command += ["--bootstrap-server", stage.address, "--json", str(findings), "--topic", *topic]
        with (stage.setup.folder / f"audit-{name}.log").open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        running[name] = (findings, process)
    results = {}
    for name, (findings, process) in running.items():
        try:
            status = process.wait(AUDIT_S)
        except subprocess.TimeoutExpired:
            raise StageError(f"the audit did not end in {AUDIT_S:.0f} s") from None
        if not findings.exists():
            raise StageError(f"the audit of {name} broke off with {status}")
        results[name] = (json.loads(findings.read_text(encoding="utf-8")), status)
    return results


def left_hanging(address: str) -> list[str]:
    """The hanging transactions that the faults left behind."""
    with Client(address) as client:
        found = client.find_hanging_transactions()
    return [f"a transaction hangs on {each.partition}: {each}" for each in found]


def shortcomings(outcomes: Sequence[Outcome], *, streams: bool) -> list[str]:
    """What the demo had to show and did not, apart from the audit's verdict."""
    exact, plain = outcomes
    found = []
    if plain.found("duplicated") == 0:
        found.append("at-least-once duplicated nothing under these faults: the demo showed nothing")
    if not exact.fenced:
        found.append("the zombie driver was not fenced")
    if streams and not exact.resizes:
        found.append("no segment was split or merged: the demo showed nothing of streams")
    found.extend(
        f"{each.name}: never recovered from fault {fault.number}, {fault.title}"
        for each in outcomes
        for fault in each.faults
        if each.name in fault.batches and each.name not in fault.recovered_s
    )
    return found


def show_logs(work: Path) -> None:
    """Print the last lines of the three logs that were written last."""
    logs = sorted(work.glob("*/*.log"), key=lambda log: log.stat().st_mtime)[-3:]
    for log in logs:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
        sys.stderr.write(f"--- {log}\n" + "".join(f"{line}\n" for line in lines))


def keep_logs(work: Path, output: Path) -> None:
    """Copy the event log and the processes' logs beside the report."""
    target = output / "logs"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for pattern in ("*.log", "*.jsonl", "*.json"):
        for file in (work / "stage").glob(pattern):
            shutil.copy(file, target)
