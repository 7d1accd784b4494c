"""What fuzzing has shown: figures, the machine, the commit, and how to run it again."""

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from fencelog.errors import WireError
from fencelog.wire.api_versions import SUPPORTED, ApiKey
from fencelog.wire.headers import read_request_header
from fencelog.wire.primitives import REQUEST_ITEMS_MAX
from tests.proofs._fuzz_heavy import heavies
from tests.proofs._fuzz_live import TURN_MS_MAX, Latencies, Live, late_share
from tests.proofs._fuzz_target import ALLOCATED_AN_ITEM, ALLOCATED_PLAIN, allocated
from tests.proofs._report import commit, head
from tests.support.damage import split

GUIDED_PROSE = """\
Streams of requests over connections of a whole node in the fuzzer's process, without sockets. They
begin as well-formed requests of every API key and version; then lengths, counts, varints, tags,
nulls, versions, header flavours and record batches are damaged where they stand, or libFuzzer
changes bytes as it likes. Every answer must be one that its client can read, of its request. An
exception in the log or the loop, an answer that is none, an allocation beyond the bound, a hang and
the end of the process are findings.
"""
LIVE_PROSE = """\
Four attackers against a broker process: damaged requests, requests that name 10,000 things for
each list of each API, frames that are announced and never come. A bystander asks for versions and
metadata, writes and reads. Another one does the same at a broker that is left in peace, at the same
time on the same machine, the fuzzer and whatever else runs beside them. The latencies are without
the time in which the machine had no core for the broker or the bystander (the kernel's run delay).
"""
DEAR_ITEMS = 8_000
_COVERED = re.compile(r"cov: (\d+) ft: (\d+) corp: (\d+)/(\S+)")
_EXECUTED = re.compile(r"number_of_executed_units: (\d+)")
_RESIDENT = re.compile(r"peak_rss_mb: *(\d+)")


@dataclass
class Guided:
    """What the fuzzer has done, over all its processes."""

    seed: int
    corpus: Path
    logs: list[str] = field(default_factory=list)
    tally: dict[str, Any] = field(default_factory=dict)
    findings: list[Path] = field(default_factory=list)
    ended: list[Path] = field(default_factory=list)
    """Streams that a process has ended with."""

    @property
    def executed(self) -> int:
        """Streams that were fed."""
        return sum(int(each) for log in self.logs for each in _EXECUTED.findall(log))

    @property
    def resident_mb(self) -> int:
        """Memory of the largest process."""
        return max((int(each) for log in self.logs for each in _RESIDENT.findall(log)), default=0)

    def coverage(self) -> list[tuple[int, int, int]]:
        """Counters reached, features and corpus entries, at the begin and at the end."""
        lines = [_COVERED.findall(log) for log in self.logs]
        every = [(int(c), int(f), int(n)) for log in lines for c, f, n, _ in log]
        return [every[0], every[-1]] if every else []


@dataclass(frozen=True)
class Proof:
    """All that was run."""

    began: datetime
    minutes: float
    guided: Guided
    live: list[Live]

    @property
    def problems(self) -> list[str]:
        """Every promise that was not kept."""
        found = [each.read_text(encoding="utf-8")[:3000] for each in self.guided.findings]
        found += [f"the fuzzing process ended: {each.name}" for each in self.guided.ended]
        if not self.live:
            found.append("the attack on a broker process did not end")
        return found + [problem for each in self.live for problem in each.problems]

    @property
    def holds(self) -> bool:
        """No finding, and something was fed."""
        return not self.problems and self.guided.executed > 0

    @property
    def summary(self) -> str:
        """One line."""
        sent = sum(sum(each.sent.values()) for each in self.live)
        return (
            f"{self.guided.executed:,} streams in {self.minutes:.0f} minutes, {sent:,} connections "
            f"over sockets, {len(self.problems)} findings"
        )


def tally_of(folder: Path) -> dict[str, Any]:
    """The tallies of all processes, in one."""
    total: dict[str, Any] = {"requests": Counter()}
    for path in sorted(folder.glob("tally-*.json")):
        tally = json.loads(path.read_text(encoding="utf-8"))
        for key, version, count in tally.pop("requests"):
            total["requests"][key, version] += count
        largest = tally.pop("allocated_an_item_max")
        total["allocated_an_item_max"] = max(total.get("allocated_an_item_max", 0.0), largest)
        for name, value in tally.items():
            total[name] = total.get(name, 0) + value
    return total


def report(proof: Proof) -> str:
    """The report as Markdown."""
    lines = [
        *head(
            "Fuzzing",
            began=proof.began,
            holds=proof.holds,
            summary=proof.summary,
            again=f"`./dev prove fuzz --minutes {proof.minutes:.0f} --seed {proof.guided.seed}`\n"
            "(the corpus of earlier runs in `.cache/fuzz-corpus` goes on from there).",
            code=commit(),
        ),
        "",
        "## Guided by coverage",
        "",
        *GUIDED_PROSE.splitlines(),
        "",
        *_guided_lines(proof.guided, proof.minutes),
        "",
        "## Over sockets, with bystanders",
        "",
        *LIVE_PROSE.splitlines(),
        "",
        *(line for each in proof.live for line in _live_lines(each)),
        "",
        "## Findings",
        "",
        *_finding_lines(proof.problems),
        "",
        "## Each API",
        "",
        *_api_lines(proof.guided),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _guided_lines(guided: Guided, minutes: float) -> list[str]:
    tally, covered = guided.tally, guided.coverage()
    requests = tally["requests"]
    spoken = [
        requests[int(key), version]
        for key, known in SUPPORTED.items()
        for version in range(known.minimum, known.maximum + 1)
    ]
    lines = [
        "| | |",
        "|---|---:|",
        f"| streams fed | {guided.executed:,} |",
        f"| a second | {guided.executed / (60 * minutes):,.0f} |",
        f"| requests in them | {sum(requests.values()):,} |",
        f"| of spoken APIs and versions, the rarest of {len(spoken)} | {min(spoken):,} |",
        f"| answers, all of them readable | {tally.get('answered', 0):,} |",
        f"| connections closed by the broker | {tally.get('closed', 0):,} |",
        f"| frames whose decoding was measured | {tally.get('decoded', 0):,} |",
        f"| memory of the process, at most | {guided.resident_mb} MB |",
    ]
    for (reached, features, entries), when in zip(covered, ("begin", "end"), strict=False):
        lines.append(
            f"| coverage at the {when}: counters, features, corpus "
            f"| {reached:,}, {features:,}, {entries:,} |"
        )
    return [
        *lines,
        "",
        f"Decoding allocated at most the frame, 64 KiB and {ALLOCATED_AN_ITEM} bytes for each item "
        "of an array; the most",
        f"was {max(tally['allocated_an_item_max'], _dearest()):.0f} bytes, with requests of "
        f"{DEAR_ITEMS:,} items. No request has more than",
        f"{REQUEST_ITEMS_MAX:,} items, and no single allocation was above 64 MiB.",
    ]


def _dearest() -> float:
    """Bytes an item of the request that takes most of them."""
    dearest = 0.0
    for each in heavies(DEAR_ITEMS):
        peak, items = allocated(each.frame)
        beyond = peak - len(each.frame) - ALLOCATED_PLAIN
        dearest = max(dearest, beyond / items if items else 0.0)
    return dearest


def _live_lines(live: Live) -> list[str]:
    rows = []
    for name in live.attacked:
        cells = [
            f"{1e3 * _quantile(_without(one[name]), share):.1f}"
            for one in (live.attacked, live.quiet)
            for share in (0.5, 0.99, 0.999, 1.0)
        ]
        rows.append(f"| {name} | {len(live.attacked[name]):,} | {' | '.join(cells)} |")
    sent = ", ".join(f"{count:,} {what}" for what, count in live.sent.items())
    return [
        f"{live.seconds:.0f} s; connections: {sent}.",
        "",
        "| ms | asked | attacked, median | 99 % | 99.9 % | worst "
        "| in peace, median | 99 % | 99.9 % | worst |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
        *rows,
        "",
        f"- by the wall clock, the worst: {1e3 * _worst(live.attacked):.0f} ms at the attacked "
        f"broker, {1e3 * _worst(live.quiet):.0f} ms at the other",
        f"- later than 100 ms: {100 * late_share(live.attacked):.2f} % of the answers of the "
        f"attacked broker, {100 * late_share(live.quiet):.2f} % of the other's",
        f"- the longest iteration of the attacked loop took {live.turn_ms:.1f} ms of CPU time (bar "
        f"{TURN_MS_MAX:.0f}), of the other {live.quiet_turn_ms:.1f}",
        f"- memory of the attacked broker: {live.resident_before_mib:.0f} MiB before, at most "
        f"{live.resident_mib:.0f} MiB",
    ]


def _without(latencies: list[tuple[float, float]]) -> list[float]:
    """What is left of the latencies without the time in which the machine had no core to give."""
    return [latency - without for latency, without in latencies]


def _worst(latencies: Latencies) -> float:
    return max(latency for one in latencies.values() for latency, _ in one)


def _quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def _finding_lines(problems: Iterable[str]) -> list[str]:
    lines: list[str] = []
    for each in list(problems)[:20]:
        lines += ["```text", *each.splitlines(), "```", ""]
    return lines or ["None."]


def _api_lines(guided: Guided) -> list[str]:
    corpus: Counter[int] = Counter()
    for path in guided.corpus.iterdir():
        for frame in split(path.read_bytes())[:1]:
            try:
                corpus[read_request_header(frame)[0].api_key] += 1
            except WireError:
                continue
    requests = guided.tally["requests"]
    lines = ["| API | versions | requests fed | corpus entries |", "|---|---|---:|---:|"]
    for key, known in SUPPORTED.items():
        fed = sum(requests[int(key), v] for v in range(known.minimum, known.maximum + 1))
        lines.append(
            f"| {ApiKey(key).name} | {known.minimum} to {known.maximum} | {fed:,} "
            f"| {corpus[int(key)]:,} |"
        )
    return lines
