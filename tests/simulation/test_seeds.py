"""A fixed set of seeds over all workloads, and the cases that once showed a defect."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fencelog_sim.workloads import WORKLOADS
from tests.support.waiting import wait_until

SEEDS = 200
DEADLINE_S = 600
CPU_TICKS_OF_A_FEW_RUNS = 200
REGRESSIONS: dict[str, dict[str, object]] = {
    # A kill parted the making of a partition from the sync of its name, which the next run used
    # unsynced; a power cut took the partition with all that was acknowledged.
    "names_of_a_killed_run": {
        "seed": 499,
        "workload": "queue",
        "plan": [
            {"kind": "kill", "at": 1.835, "point": "sync_directory "},
            {"kind": "kill", "at": 4.194},
            {"kind": "power", "at": 8.026, "how": "TORN"},
        ],
        "clients": 2,
        "span_s": 1.268,
    },
    # A start lost a coordinator to its disk while markers were written, and took the transactions
    # that this one had decided for some that no coordinator lists: a committed version was aborted.
    "coordinator_lost_in_a_start": {
        "seed": 59,
        "workload": "versioned",
        "plan": [{"kind": "restart", "at": 1.2}, {"kind": "write-fails", "at": 1.22}],
        "span_s": 3.0,
    },
    # A paused leader's long poll was due before the timer of its lease, and was answered after it.
    "read_that_waits_for_longer_than_the_lease": {
        "seed": 4000001,
        "workload": "queue-aiokafka",
        "plan": [
            {"kind": "pause", "at": 4.505, "seconds": 1.266},
            {"kind": "no-store", "at": 5.643, "how": "all", "host": 2},
        ],
        "clients": 2,
        "span_s": 8.114,
        "brokers": 3,
    },
    # A replica was replaced while it raised its log start, which then was looked at for ever: the
    # broker hung.
    "replica_replaced_while_its_log_start_rises": {
        "seed": 5000063,
        "workload": "keyed",
        "plan": [
            {"kind": "full", "at": 0.723, "seconds": 0.783, "how": "ALL", "host": 3},
            {"kind": "swallow", "at": 3.542, "host": 2},
            {"kind": "isolate", "at": 5.722, "seconds": 7.438, "how": "in", "host": 3},
        ],
        "clients": 3,
        "span_s": 10.150648796622514,
        "brokers": 3,
    },
    # A broker was away while the others compacted the end of a claim away. It came back with the
    # claim, and brought it back to life when it led.
    "deletions_compacted_away_while_a_replica_was_away": {
        "seed": 5000109,
        "workload": "owners",
        "plan": [
            {"kind": "no-store", "at": 1.191, "seconds": 7.81, "how": "one", "host": 3},
            {
                "kind": "kill",
                "at": 1.633,
                "point": "answer EndTxn",
                "after": True,
                "seconds": 0.443,
                "host": 3,
            },
            {"kind": "no-store", "at": 11.06, "seconds": 4.489, "how": "all", "host": 2},
        ],
        "clients": 4,
        "span_s": 15.832347958222254,
        "brokers": 3,
    },
    # A coordinator's answers were lost on a connection that both ends held for sound: each write of
    # its transactions waited for longer than its client.
    "silent_coordinator": {
        "seed": 4100033,
        "workload": "quiet",
        "plan": [{"kind": "swallow", "at": 2.478, "host": 3}],
        "clients": 1,
        "span_s": 4.101,
        "brokers": 3,
    },
    # All of a partition was deleted, another segment was begun, and a power cut took its snapshot:
    # the start removed the old segment, and forgot the producers.
    "producers_of_a_log_that_was_deleted_up_to_its_end": {
        "seed": 6000007,
        "workload": "keyed",
        "plan": [
            {"kind": "strand", "at": 4.932},
            {"kind": "skew", "at": 6.734, "how": "5000", "host": 2},
            {
                "kind": "power",
                "at": 6.912,
                "point": "answer BrokerWriteMarkers",
                "how": "NONE",
                "host": 3,
            },
            {"kind": "no-store", "at": 8.822, "seconds": 4.311, "how": "one"},
            {"kind": "site-power", "at": 13.596, "how": "ALL", "host": 3},
        ],
        "clients": 4,
        "span_s": 3.771,
        "brokers": 3,
    },
    # A replica of a compacted topic without records forgot its leader epoch, and a shorter one led.
    "leader_epoch_of_a_compacted_log_without_records": {
        "seed": 6000125,
        "workload": "keyed",
        "plan": [
            {"kind": "pause", "at": 4.452, "seconds": 9.677},
            {"kind": "site-power", "at": 10.042, "how": "NONE", "host": 3},
        ],
        "clients": 2,
        "span_s": 3.136,
        "brokers": 3,
    },
    # A segment was begun while the log start was raised to its begin: the old one was deleted, and
    # nothing had made durable what it told of producers.
    "producers_of_a_segment_that_is_deleted_while_the_next_is_begun": {
        "seed": 6000007,
        "workload": "keyed",
        "plan": [
            {"kind": "swallow", "at": 0.132, "host": 3},
            {
                "kind": "power",
                "at": 1.434,
                "point": "create *",
                "seconds": 1.415,
                "how": "HOLES",
                "host": 3,
            },
            {"kind": "strand", "at": 4.932, "point": "request EndTxn", "nth": 10},
            {"kind": "skew", "at": 6.734, "how": "5000", "host": 2},
            {
                "kind": "power",
                "at": 6.912,
                "point": "answer BrokerWriteMarkers",
                "seconds": 1.035,
                "how": "NONE",
                "host": 3,
            },
            {"kind": "no-store", "at": 8.822, "seconds": 4.311, "how": "one"},
            {"kind": "site-power", "at": 13.596, "how": "ALL", "host": 3},
        ],
        "clients": 4,
        "span_s": 3.771,
        "brokers": 3,
    },
    # A topic was deleted while a replica of it was being opened; one of the next topic of its name
    # was opened before the removal could begin, and removed by it.
    "next_topic_of_a_name_whose_removal_waits": {
        "seed": 8000096,
        "workload": "admin",
        "plan": [],
        "clients": 2,
        "span_s": 11.213,
        "brokers": 3,
    },
}
"""Cases by what they showed. They have their plans, as what a seed draws may change; what clients
do in them may change too, so each defect has a test of its own beside its code."""


def simulate(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "fencelog_sim", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(DEADLINE_S)
def test_two_hundred_seeds_show_no_anomaly_and_all_kinds_of_faults() -> None:
    share = SEEDS // len(WORKLOADS)
    told = simulate("--seeds", f"0:{share}", "--workload", "all")
    assert f"{share * len(WORKLOADS)} seeds, 0 failed" in told
    for kind in ("kill", "power", "client-kill", "pause", "cut", "reset", "sync-fails"):
        assert f"\n {kind} " in told, told


def test_ctrl_c_reports_the_seeds_run_so_far() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "fencelog_sim", "--minutes", "5", "--jobs", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            workers = wait_until(
                lambda: pids if len(pids := children.read_text().split()) == 2 else None,
                what="two workers",
            )
            wait_until(
                lambda: _cpu_ticks(workers[0]) > CPU_TICKS_OF_A_FEW_RUNS,
                deadline_s=60,
                what="some runs",
            )
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            out, err = process.communicate(timeout=60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130, err
    assert re.search(r"^[1-9]\d* seeds, 0 failed", out, re.MULTILINE), out
    assert "Traceback" not in err


def _cpu_ticks(pid: str) -> int:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return int(user) + int(system)


@pytest.mark.parametrize("case", REGRESSIONS.values(), ids=REGRESSIONS)
def test_a_case_that_showed_a_defect_stays_clean(case: dict[str, object], tmp_path: Path) -> None:
    file = tmp_path / "case.json"
    file.write_text(json.dumps(case), encoding="utf-8")
    assert " 0 runs with nothing to check" in simulate("--case", str(file))
