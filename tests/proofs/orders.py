"""``./dev prove orders [--write]``: the two orders in which a crash hurts, and the cure for both.

Whoever copies records does two things for each: it writes the output, and commits how far it has
come. A crash between the two doubles records in one order and loses them in the other; within a
transaction it does neither (E11). Real workers, killed by SIGKILL, before a real broker.

Exit status 0: each crash cost what its order says, and nothing in a transaction. ``--write`` keeps
the dated report in ``docs/internals/proofs``.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from tests.proofs._orders_rig import CASES, CHUNK, KILLED_CHUNK, RECORDS, Result, run
from tests.proofs._report import commit, head, publish
from tests.support.broker import BrokerProcess


def report(results: Sequence[Result], began: datetime) -> str:
    """The report as Markdown."""
    wrong = sum(1 for each in results if not each.is_as_expected)
    lines = [
        *head(
            "Crash orders",
            began=began,
            holds=not wrong,
            summary=f"{len(results)} kills, {wrong} not as expected",
            again="`./dev prove orders`",
            code=commit(),
        ),
        f"- confluent-kafka {version('confluent-kafka')}",
        "",
        f"A worker copies {RECORDS} records in chunks of {CHUNK}; in chunk {KILLED_CHUNK + 1} it",
        "gets SIGKILL at the point named, and another worker goes on from the committed position.",
        "The output is read at `read_committed`. With fencelog's own client a chunk is a version",
        "of a versioned transaction, and the position the version that was committed last.",
        "",
        "| client | transaction | order | killed | doubled | lost |",
        "|---|---|---|---|---:|---:|",
    ]
    for each in results:
        case = each.case
        mark = "" if each.is_as_expected else " **unexpected**"
        lines.append(
            f"| {case.client} | {'yes' if case.is_transaction else 'no'} | {case.order} "
            f"| {case.killed} | {each.doubled} | {each.lost}{mark} |"
        )
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str]) -> int:
    """Run every case; returns the exit status."""
    parser = argparse.ArgumentParser(prog="./dev prove orders", description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep the report, by date")
    wanted = parser.parse_args(argv)
    began = datetime.now(UTC)
    results = []
    with (
        tempfile.TemporaryDirectory(prefix="fencelog-orders-") as folder,
        BrokerProcess(Path(folder) / "data") as broker,
    ):
        for number, case in enumerate(CASES):
            results.append(run(case, broker.address, f"orders-{number}"))
            verdict = f"{results[-1].doubled} doubled, {results[-1].lost} lost"
            print(f"{case.name}: {verdict}", flush=True)
    publish("orders", began, report(results, began), None, is_full=wanted.write)
    wrong = [each for each in results if not each.is_as_expected]
    print(f"orders: {len(results)} kills, {len(wrong)} not as expected")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
