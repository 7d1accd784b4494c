"""What does a broker alone cost, beside the commit before there were several?"""

import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from bench._processes import resident_mib, scratch
from bench._report import ROOT, Figure, Report, sized
from bench._trees import at_commit, broker_of, with_bytecode
from bench.before import KINDS, Clients, compare
from bench.startup import end, serve, start

BASE = "9e4fb87f"
METHOD = (
    f"Brokers of commit {BASE} and of this get the same requests alternately (`os` durability, "
    "one partition): batches of 1 MB and single idempotent records over a plain socket, and single "
    "records by confluent-kafka. CPU is the broker process's, from /proc; each round is a pair, "
    "and shares are medians of the pairs' ratios. Starts alternate, too; each is on a new "
    "directory, and the first of each is not counted. Memory is VmRSS a second after ready."
)


def main() -> None:
    """Measure in alternating rounds."""
    report = Report("alone", f"a broker alone beside commit {BASE}", METHOD)
    with scratch() as place:
        sources = {"before": at_commit(BASE, place / "before"), "now": ROOT / "src"}
        for source in sources.values():
            with_bytecode(source)
        with ExitStack() as stack:
            clients = {
                name: Clients(stack.enter_context(broker_of(source, place / f"data-{name}")), place)
                for name, source in sources.items()
            }
            for title, cost in KINDS.items():
                compare(report, title, sized(11, 1), clients, cost)
        starting(report, sources, place)
    report.finish()


def starting(report: Report, sources: dict[str, Path], place: Path) -> None:
    """CPU time until a broker serves, and its memory then."""
    cpus: dict[str, list[float]] = {name: [] for name in sources}
    memory: dict[str, list[float]] = {name: [] for name in sources}
    for number in range(sized(15, 1) + 1):
        for name in sources if number % 2 else reversed(sources):
            command = serve(place / f"start-{name}-{number}")
            _, cpu, process = start(command, {"PYTHONPATH": str(sources[name])})
            time.sleep(1)
            if number:
                cpus[name].append(1e3 * cpu)
                memory[name].append(resident_mib(process.pid))
            end(process)
    for title, values, unit in (("CPU until ready", cpus, "ms"), ("idle memory", memory, "MiB")):
        pairs = zip(values["now"], values["before"], strict=True)
        share = median(mine / before for mine, before in pairs)
        report.add(
            Figure(
                name=title,
                value=median(values["now"]),
                unit=unit,
                ceiling=median(values["before"]),
                ceiling_name="before",
                goal=f"<= 1.02 of before, is {share:.2f}",
                met=share <= 1.02,
            )
        )


if __name__ == "__main__":
    main()
