"""The dated report of the kills of Spark on fencelog's broker."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from tests.proofs._report import commit, head, packages, problem_lines, strike_lines
from tests.proofs._spark_run import CaseVerdict, Strike
from tests.support.found import Found, section, summary

PROSE = """\
Each case is a broker, a master and a session of one to three queries that read one topic, each with
a checkpoint and a sink of its own. Drivers run until a strike ends them and are started again as
they were. After each strike the output of the query that was hit may hold nothing twice and nothing
foreign; where a copy is held at a commit point, it is exactly the batches up to that one. In the
end the output of each query is compared, value by value, with what its input makes; copies and
`each_batch` are also judged by `fencelog check`: each write of a batch is one transaction there,
and every reading between the strikes is a reader. No transaction hangs.

- who: `driver` (its Python and its JVM; its Python workers go on), `jvm` (the driver's JVM alone),
  `zombie` (all of the driver is stopped, another one takes over and notes a batch, then the first
  is continued, and must end by itself), `broker` (SIGKILL, started again at once), `worker` (the
  Python of a task, or what plans and commits in the driver), `daemon` (which forks workers),
  `executor` (its JVM; in the clusters only)
- where: `writing` (rows taken), `written` (all acknowledged), `committing` (nothing decided),
  `committed` (decided, Spark does not know), `random` (within 1.5 s of a batch's planning), `start`
  (within 8 s of a driver's start)
- masters: `local[2,4]`; `local-cluster` with two executors; `standalone`, a master and two workers
- stall: from the kill until the query that was hit has noted another batch, the start of another
  driver included where one is needed. "Ended": a driver ended by itself after such a strike, and
  was started again
"""
FAULTS_PROSE = """\
A few kills over a copy of the source with one fault. It is found by what is in the sink; a case
that gets stuck finds nothing.
"""
LINES_SHOWN = 40
PACKAGES = ("confluent-kafka", "kafka-python", "pyspark", "pyarrow")


@dataclass(frozen=True, kw_only=True)
class Proof:
    """All that was run; ``wanted``: how many kills a full run has; ``first``: its first case."""

    began: datetime
    seed: int
    wanted: int
    first: int
    cases: list[CaseVerdict]
    faults: list[Found]

    @property
    def strikes(self) -> list[Strike]:
        """Every strike after which it is known what happened."""
        return [strike for verdict in self.cases for strike in verdict.strikes]

    @property
    def problems(self) -> list[str]:
        """Every promise that was not kept."""
        return [f"{each.case}: {wrong}" for each in self.cases for wrong in each.problems]

    @property
    def holds(self) -> bool:
        """No promise broken, and no fault overlooked."""
        return not self.problems and all(each.problems for each in self.faults)

    @property
    def summary(self) -> str:
        """One line."""
        in_batch = sum(each.in_batch for each in self.strikes)
        text = (
            f"{len(self.strikes)} kills of {self.wanted}, {in_batch} of them while a batch ran, "
            f"{len(self.problems)} problems"
        )
        return f"{text}; {summary(self.faults)}" if self.faults else text


def report(proof: Proof) -> str:
    """The report as Markdown."""
    lines = [
        *head(
            "Kills of Spark",
            began=proof.began,
            holds=proof.holds,
            summary=proof.summary,
            again=f"`./dev prove spark --kills {proof.wanted} --seed {proof.seed} --first "
            f"{proof.first}`\n(the seed fixes the cases, the strikes and their moments; what the"
            f" machine does between them is its\nown). Cases {proof.first} to"
            f" {proof.first + len(proof.cases) - 1} were run.",
            code=commit(),
        ),
        packages(PACKAGES),
        "",
        *PROSE.splitlines(),
        "",
        *_totals(proof.cases),
        "",
        *_targets(proof),
        "",
        *strike_lines(strike.kill for strike in proof.strikes),
        "",
        *_cases(proof.cases),
        "",
        *problem_lines(proof.problems),
        *_last_words(proof.cases),
        *section(proof.faults, FAULTS_PROSE.splitlines()),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _totals(cases: Sequence[CaseVerdict]) -> list[str]:
    rows = [
        ("drivers", sum(each.drivers for each in cases)),
        ("zombies continued", sum(each.zombies for each in cases)),
        ("records in", sum(each.sent for each in cases)),
        ("values out", sum(each.read for each in cases)),
        ("values lost", sum(each.lost for each in cases)),
        ("values doubled or foreign", sum(each.doubled for each in cases)),
        ("transactions checked by `fencelog check`", sum(each.transactions for each in cases)),
        ("seconds", sum(round(each.seconds) for each in cases)),
    ]
    return ["| | |", "|---|---:|", *(f"| {name} | {count:,} |" for name, count in rows)]


def _targets(proof: Proof) -> list[str]:
    ended: Counter[str] = Counter()
    for verdict in proof.cases:
        for kill, count in verdict.ended.items():
            ended[kill.partition(" at ")[0]] += count
    rows = []
    for target in sorted({strike.kill.target for strike in proof.strikes}):
        of_it = [strike for strike in proof.strikes if strike.kill.target == target]
        stalls = [strike.stall_s for strike in of_it if strike.stall_s is not None]
        rows.append(
            f"| {target} | {len(of_it)} | {sum(each.in_batch for each in of_it)} "
            f"| {ended[target]} | {_seconds(median, stalls)} | {_seconds(max, stalls)} |"
        )
    lines = [
        "| killed | times | while a batch ran | ended | stall, median s | longest s |",
        "|---|---:|---:|---:|---:|---:|",
        *rows,
    ]
    if ended["nothing"]:
        lines += ["", f"{ended['nothing']} drivers ended by themselves before anything was killed."]
    return lines


def _seconds(chosen: object, stalls: Iterable[float]) -> str:
    values = list(stalls)
    return f"{chosen(values):.1f}" if values and callable(chosen) else "-"


def _cases(cases: Sequence[CaseVerdict]) -> list[str]:
    return [
        "| case | kills | drivers | records | problems | s |",
        "|---|---:|---:|---:|---:|---:|",
        *(
            f"| {each.case} | {len(each.strikes)} | {each.drivers} | {each.sent:,} "
            f"| {len(each.problems)} | {each.seconds:.0f} |"
            for each in cases
        ),
    ]


def _last_words(cases: Sequence[CaseVerdict]) -> list[str]:
    """The end of the stderr of the last drivers of cases that have problems."""
    lines = []
    for each in cases:
        if each.problems and each.last_words:
            last = each.last_words[-1].splitlines()[-LINES_SHOWN:]
            lines += [f"{each.case}:", "", "```text", *last, "```", ""]
    return ["## The last driver's stderr", "", *lines] if lines else []
