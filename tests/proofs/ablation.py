"""``./dev prove ablation [RULE…]``: take out each line that keeps a rule; its test turns red.

Each fault of ``_planted`` is put into a copy of the source, and its one test runs against the copy.
A test that stays green proves nothing about its rule, and the proof fails. With ``--write`` alone
only ``docs/internals/rules.md`` is written, and nothing planted.
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from tests.proofs._planted import PLANTED, RULES, SEEN, Planted

ROOT = Path(__file__).parent.parent.parent
RULES_PAGE = ROOT / "docs/internals/rules.md"
REPORT = ROOT / "docs/internals/proofs/ablation.md"
TEST_DEADLINE_S = 240
LEFT_OPEN = [
    "## What is left open",
    "",
    "**E14, delayed requests of a version 1 producer.** A client of transaction version 2 has an",
    "epoch for each transaction, which tells every delayed request. One of version 1 keeps its",
    "epoch; there the broker goes by connections: a request is refused, and its connection ended,",
    "where that is older than the newest one on which the same kind of request came from that",
    "producer; and a connection that was replaced for one kind of request is refused for all.",
    "Two things are left. What stands between client and broker may reorder requests within one",
    "connection, or bring a late one on a connection that it opens itself: TCP does neither, a",
    "proxy that speaks Kafka could. And a connection that its client gave up is not known for one",
    "until something that came on it comes on another: where a client keeps one for its group",
    "alone and aborts a transaction because TxnOffsetCommit was not answered, that request counts",
    "if it arrives in the next transaction, before the next TxnOffsetCommit. A delayed produce is",
    "then still refused unless the next transaction has that partition and its sequence is the",
    "one that is due there; a delayed EndTxn is repeated by every client before it goes on. Of",
    "more than 20,000 such producers at a time those that were silent for the longest are not",
    "followed. `./dev prove delays` counts all of it, in both versions.",
    "",
    "**E8, clients that cannot name a member.** TxnOffsetCommit below version 3 has no room for",
    "member and generation (aiokafka speaks 0): such a zombie is let through, as in Kafka, unless",
    "the topic or the broker has `group.fence=required`, which refuses every one of them. One",
    "transactional id for each input partition fences them without it.",
    "",
    "**E17, decisions after a power cut in `os` mode.** A partition may lose a marker that its",
    "coordinator counts as written. Its transaction is then ended as decided only while that is",
    "the coordinator's last word on this producer; once the next transaction has begun, or where",
    "it was a versioned one, it is aborted. In version 1 a transaction whose enlistment was lost",
    "instead looks the same, under the same epoch, and is committed with the one before it; in",
    "version 2 the epoch tells. `fsync` mode has none of this.",
    "",
    "**F4, several partitions without a transaction.** A produce request is not atomic over its",
    "partitions: each gets its own result. Atomicity over partitions is what transactions are for.",
    "",
    "**D2, a partition of a coordinator.** When a write or a sync of an internal topic fails, the",
    "transactional ids, apps and groups on that partition get COORDINATOR_NOT_AVAILABLE until the",
    "broker is started again. A partition that stays offline keeps the transactions that wrote to",
    "it undecided for their producers.",
    "",
    "**D3, a hole in what nobody was promised.** A power cut may keep a later batch of the last,",
    "unacknowledged round and lose an earlier one. In `fsync` mode a sound batch behind a bad one",
    "counts as damage: the partition stays offline though nothing acknowledged is lost. There is",
    "no command yet that salvages it.",
    "",
    "**D4, retries across a compaction and a crash.** Of a producer whose records are superseded",
    "its last batch stays. A retry of one of the four before it is known while the broker runs and",
    "after a clean stop; after a crash it is out of order.",
    "",
    "**F7, the epoch of a single node.** A restart does not begin a new leader epoch. Where `os`",
    "mode lost a tail with the power, a reader that had seen it is not told that its log forked.",
]
TESTS_FAILED = 1  # pytest's exit status; any other one means that no test ran to its end


def plant(fault: Planted, source: Path) -> None:
    """Put a fault into a copy of ``src``; the text must stand there exactly once."""
    path = source / "fencelog" / fault.file
    text = path.read_text(encoding="utf-8")
    count = text.count(fault.text)
    assert count == 1, f"{fault.rule}: {fault.file} has {count} times:\n{fault.text}"
    path.write_text(text.replace(fault.text, fault.instead), encoding="utf-8")


def run_against(fault: Planted) -> "subprocess.CompletedProcess[str]":
    """Run the fault's test against a copy of the source that has the fault."""
    with tempfile.TemporaryDirectory(prefix="fencelog-ablation-") as directory:
        source = Path(directory) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        plant(fault, source)
        return subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-x",
                "-p",
                "no:cacheprovider",
                "--timeout=90",
                fault.test,
            ],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=TEST_DEADLINE_S,
            check=False,
        )


def is_seen(fault: Planted) -> tuple[bool, str]:
    """Whether the fault's test turned red, and what pytest said last."""
    try:
        done = run_against(fault)
    except (AssertionError, subprocess.TimeoutExpired) as error:
        return False, str(error)
    return done.returncode == TESTS_FAILED, f"{done.stdout}\n{done.stderr}".strip()


def rules_page() -> str:
    """The page that joins rules and tests, from ``_planted``."""
    lines = [
        "# The rules in force, and what proves them",
        "",
        "Each line is a rule, the file that keeps it, and the test that turns red when that part",
        "of the file is taken out. `./dev prove ablation` takes each out, in a copy, and looks;",
        "the page is written by `./dev prove ablation --write`. A rule without a file is a whole",
        "path's; its test shows that it holds.",
        "",
        "Replication, ownership and growing streams have rules too; they are not built yet and so",
        "not listed.",
        "",
        "| rule | says | kept by | red without it |",
        "|---|---|---|---|",
    ]
    for rule, says in RULES.items():
        rows = [(f"`{each.file}`", each.test) for each in PLANTED if each.rule == rule]
        rows += [("", test) for test in SEEN.get(rule, [])]
        for number, (file, test) in enumerate(rows):
            first = (f"**{rule}**", says) if number == 0 else ("", "")
            lines.append(f"| {first[0]} | {first[1]} | {file} | `{test}` |")
    return "\n".join([*lines, "", *LEFT_OPEN]) + "\n"


def main(arguments: list[str]) -> int:
    """Try every fault, or those of the rules that are named."""
    parser = argparse.ArgumentParser(prog="./dev prove ablation", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {RULES_PAGE.name} first")
    parser.add_argument("rules", nargs="*", metavar="RULE", help="of these only, such as E14")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.rules) - {each.rule for each in PLANTED}:
        parser.error(f"no fault is planted against {', '.join(sorted(unknown))}")
    if asked.write:
        RULES_PAGE.write_text(rules_page(), encoding="utf-8")
        if not asked.rules:
            return 0
    wanted = [each for each in PLANTED if not asked.rules or each.rule in asked.rules]
    lines, blind = [], 0
    began = time.monotonic()
    for fault in wanted:
        seen, output = is_seen(fault)
        lines.append(f"{fault.rule:4} {'red  ' if seen else 'BLIND'} {fault.file}  {fault.test}")
        print(lines[-1], flush=True)
        if not seen:
            blind += 1
            print(output)
    verdict = f"{len(wanted)} faults planted, {len(wanted) - blind} seen, {blind} not"
    lines.append(f"ablation: {verdict}, in {time.monotonic() - began:.0f} s")
    print(lines[-1])
    if wanted == PLANTED and not blind:
        write_report(lines)
    return 1 if blind or not wanted else 0


def write_report(lines: list[str]) -> None:
    """Keep the last whole run that succeeded, with its date and Python."""
    today = datetime.now(tz=UTC).date().isoformat()
    head = f"# Ablation, {today}\n\n`./dev prove ablation`, CPython {platform.python_version()}"
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text("\n".join([head, "", "```", *lines, "```", ""]), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
