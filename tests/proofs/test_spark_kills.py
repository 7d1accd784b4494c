"""A slice of ``./dev prove spark``, and that its checks find what they must."""

import os
import random
import threading
from collections import Counter
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from tests.proofs import _spark_cases as cases
from tests.proofs import _spark_kills as spark_part
from tests.proofs import _spark_run as part
from tests.proofs._limit import limited
from tests.proofs._spark_history import Look, judge
from tests.proofs._spark_kills import LOCAL, POINTS, Kill
from tests.proofs._spark_report import Proof, report
from tests.support.spark.queries import COMPLETE, COPY, EACH_BATCH, expected

SLICE = cases.Case(
    master=LOCAL, kind="three", queries=(COPY, COMPLETE, EACH_BATCH), durability="os"
)
STRIKES = (Kill("worker", "written"), Kill("broker", "committing"), Kill("driver", "committed"))


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_three_queries_go_on_exactly_when_task_broker_and_driver_are_killed(
    tmp_path: Path,
) -> None:  # S2, S3, S4, S5
    seed = random.randrange(10**6)
    verdict = part.run(tmp_path, SLICE, kills=STRIKES, seed=seed, until=inf)
    assert verdict.problems == [], (verdict, verdict.last_words)
    assert tuple(strike.kill for strike in verdict.strikes) == STRIKES
    assert all(strike.in_batch for strike in verdict.strikes)
    assert verdict.transactions > 0
    assert verdict.read > verdict.sent > 0


def test_each_case_comes_once_and_each_master_and_kind_early() -> None:
    chosen = cases.choose_cases(random.Random(1))
    conditions = {(each.master, each.kind, each.durability) for each in chosen}
    assert len(conditions) == len(chosen) == 36
    early = chosen[:6]
    assert {each.kind for each in early} == set(cases.KINDS)
    assert {each.master for each in early} == set(cases.MASTERS)
    assert {each.durability for each in early} == set(cases.DURABILITIES)
    assert sum(cases.shares(500, chosen)) == 500


def test_every_strike_comes_before_any_comes_again() -> None:
    cluster, local = (
        next(each for each in cases.choose_cases(random.Random(2)) if each.master == master)
        for master in (cases.STANDALONE, LOCAL)
    )
    drawn = cases.choose_strikes(cluster, len(cases.STRIKES), random.Random(3))
    assert Counter(drawn) == Counter(cases.STRIKES)
    assert "executor" not in {
        each.target for each in cases.choose_strikes(local, 100, random.Random(4))
    }


def test_no_driver_is_held_at_a_point_while_its_query_is_to_go_on_by_itself() -> None:
    chance = random.Random(5)
    left = cases.choose_strikes(SLICE, 200, chance)
    while left:
        *held, last = life = cases.one_life(left)
        assert all(kill.point in POINTS and kill.target not in cases.DEATHS for kill in held)
        left = left[len(life) :]
        assert not left or last.point not in POINTS or last.target in cases.DEATHS


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        ([(0, b"0"), (2, b"2")], None),
        ([(0, b"0")], "unseen"),
        ([(0, b"0"), (2, b"2"), (3, b"2")], "duplicate"),
        ([(0, b"0"), (2, b"2"), (3, b"7")], "phantom"),
    ],
)
def test_the_checker_judges_the_batches_of_a_checkpoint(
    found: list[tuple[int, bytes]], wrong: str | None, tmp_path: Path
) -> None:
    for log, second in (("offsets", 10), ("commits", 11)):
        (tmp_path / log).mkdir()
        for batch in (0, 1):
            file = tmp_path / log / str(batch)
            file.touch()
            os.utime(file, (second + batch * 5, second + batch * 5))
    looks = [Look(20.0, 21.0, {0: found})]
    problems, count = judge(COPY, tmp_path, {0: [0], 1: [2]}, looks)
    assert count == 2
    assert (wrong is None) == (problems == [])
    assert wrong is None or any(wrong in problem for problem in problems), problems


def test_complete_mode_is_expected_to_write_all_totals_with_each_batch() -> None:
    assert expected(COMPLETE, [range(2), range(2, 11)]) == Counter(
        {"k0/1": 1, "k0/2": 1, "k1/1": 2, **{f"k{key}/1": 1 for key in range(2, 10)}}
    )
    assert expected(EACH_BATCH, [range(2), [3]]) == Counter(["0", "1", "3"])


def test_the_report_names_the_longest_stall_of_each_target() -> None:
    kill = Kill("broker", "committing")
    verdict = part.CaseVerdict(seed=1, case=SLICE, kills=[f"{kill}, copy, batch 1"])
    verdict.strikes = [
        part.Strike(kill=kill, in_batch=True, stall_s=stall_s) for stall_s in (1.0, 3.0, 8.0, None)
    ]
    began = datetime(2026, 11, 23, tzinfo=UTC)
    proof = Proof(began=began, seed=1, wanted=500, first=3, cases=[verdict], faults=[])
    assert proof.holds
    assert "4 kills of 500, 4 of them while a batch ran, 0 problems" in report(proof)
    assert "| broker | 4 | 4 | 0 | 3.0 | 8.0 |" in report(proof)
    assert "--seed 1 --first 3`" in report(proof)
    assert "Cases 3 to 3 were run" in report(proof)
    verdict.last_words += ["an earlier driver", "Exception: who knows"]
    assert "who knows" not in report(proof)
    verdict.problems.append("a value is doubled")
    assert "DOES NOT HOLD" in report(proof)
    assert "```text\nException: who knows\n```" in report(proof)


def test_a_case_that_gets_stuck_is_ended_and_is_a_problem_with_its_driver_s_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def strike(*_: object) -> None:
        threading.Event().wait(60.0)

    broker = MagicMock(address="127.0.0.1:1")
    monkeypatch.setattr(part, "BrokerProcess", lambda *_, **__: broker)
    monkeypatch.setattr(part, "create_topics", lambda *_: None)
    monkeypatch.setattr(part, "hanging", lambda _: [])
    monkeypatch.setattr(part.CaseRun, "strike", strike)
    monkeypatch.setattr(part.CaseRun, "last_words", lambda _: "Exception: who knows")
    with limited(0.05, "the case"):
        verdict = part.run(tmp_path, SLICE, kills=STRIKES, seed=1, until=inf)
    (problem,) = verdict.problems
    assert problem == "the case got stuck at its strikes: the case has not ended within 0 s"
    assert verdict.last_words == ["Exception: who knows"]
    broker.__exit__.assert_called_once()


def test_a_broker_that_does_not_start_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object, **__: object) -> None:
        raise TimeoutError("no broker")

    monkeypatch.setattr(part, "BrokerProcess", start)
    verdict = part.run(tmp_path, SLICE, kills=STRIKES, seed=1, until=inf)
    assert verdict.problems == ["the case got stuck: no broker"]


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        ({(0, 0): 2, (1, 0): 1}, "1 records are doubled"),
        ({(0, 1): 1, (1, 0): 1}, "1 records are there without"),
        ({(0, 0): 1, (0, 1): 1, (1, 0): 1}, "(2, 1) records"),
        ({}, "(0, 0) records"),
    ],
)
def test_an_output_that_is_not_exactly_a_prefix_of_the_input_is_named(
    found: dict[tuple[int, int], int], wrong: str
) -> None:
    assert spark_part.problem(Counter({(0, 0): 1, (1, 0): 1}), [(1, 1)]) is None
    assert (spark_part.problem(Counter(found), [(1, 1)]) or "").startswith(wrong)
