"""What ``./dev prove mutation`` counts, and that a mutant is tried by the tests that call it."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.proofs._mutant_stages import Work, try_mutants
from tests.proofs._mutants import (
    SURVIVED,
    Equivalent,
    Mutant,
    Outcome,
    complaints,
    equivalents,
    place_of,
    sample,
    scores,
    table,
)
from tests.proofs.mutation import Results
from tests.support.faults import ROOT

MUTANT = Mutant(
    file="src/fencelog/log/config.py",
    where="f",
    line=2,
    old=("    return a <", "        b"),
    new=("    return a <=", "        b"),
    nth=0,
    body="",
)
EXPLAINED = Equivalent(
    where="log/config.py f", old="return a <\nb", new="return a <=\nb", why="they are never equal"
)


def many(room: str, count: int) -> list[Mutant]:
    file = f"src/fencelog/{room}/x.py"
    return [replace(MUTANT, file=file, where=f"f{number}") for number in range(count)]


def test_a_mutant_changes_its_lines_and_no_others() -> None:
    text = "def f(a, b):\n    return a <\n        b\n# end\n"
    assert MUTANT.applied_to(text) == "def f(a, b):\n    return a <=\n        b\n# end\n"


def test_a_mutant_is_refused_where_its_lines_have_changed() -> None:
    with pytest.raises(ValueError, match=r"log/config.py f has changed"):
        MUTANT.applied_to("def f(a, b):\n    return a >\n        b\n")


def test_a_line_is_in_a_function_or_a_method() -> None:
    text = "X = 1\n\ndef f():\n    def g():\n        return 1\n\nclass C:\n    def f(self): ...\n"
    places = [place_of(MUTANT.file, text, line) for line in (1, 5, 8)]
    assert places == [MUTANT.file, MUTANT.place, "log/config.py C.f"]


def test_a_mutant_keeps_its_name_where_other_lines_move_it() -> None:
    assert MUTANT.name == replace(MUTANT, line=70, body="other").name
    assert MUTANT.name != replace(MUTANT, nth=1).name


def test_a_sample_takes_as_many_of_each_room_and_the_same_for_the_same_seed() -> None:
    mutants = many("log", 50) + many("spark", 30)
    chosen = sample(mutants, 10, seed=1)
    assert [each.room for each in chosen] == ["log"] * 10 + ["spark"] * 10
    assert sample(reversed(mutants), 10, seed=1) == chosen
    assert sample(mutants, 10, seed=2) != chosen


def test_a_mutant_that_goes_moves_one_other_into_the_sample() -> None:
    mutants = many("log", 50)
    chosen = sample(mutants, 10, seed=1)
    without = sample([each for each in mutants if each != chosen[0]], 10, seed=1)
    assert without[:9] == chosen[1:]


def test_equivalent_mutants_count_for_neither_side() -> None:
    mutants = [MUTANT, *many("log", 4)]
    outcomes = [
        Outcome(mutant=each, killer=killer)
        for each, killer in zip(mutants, [SURVIVED, SURVIVED, "room", "room", "types"], strict=True)
    ]
    (score,) = scores(outcomes, [EXPLAINED], {"log": 99})
    assert (score.equivalent, score.survived, score.percent) == (1, 1, 75.0)
    assert table([score])[-1] == "| log | 99 | 5 | 1 | 2 | 1 | 1 | 75.0 % | 66.7 % |"


def test_a_list_of_equivalent_mutants_that_is_wrong_is_complained_of() -> None:
    killed = Outcome(mutant=MUTANT, killer="room", by="test_f")
    gone = replace(EXPLAINED, nth=1)
    told = complaints([MUTANT], [killed], [EXPLAINED, gone])
    assert [each.partition(": ")[0] for each in told] == [
        "listed as equivalent, but it is no mutant",
        "listed as equivalent, but killed by test_f",
    ]


@pytest.mark.parametrize("each", equivalents(), ids=lambda each: each.where)
def test_an_explained_mutant_is_of_lines_that_exist(each: Equivalent) -> None:
    text = (ROOT / "src/fencelog" / each.where.partition(" ")[0]).read_text(encoding="utf-8")
    flush_left = "\n".join(line.strip() for line in text.splitlines())
    assert each.old in flush_left
    assert each.why


def mutant_of_config(old: str, new: str) -> Mutant:
    lines = (ROOT / MUTANT.file).read_text(encoding="utf-8").splitlines()
    return replace(
        MUTANT,
        where="LogConfig.from_topic_config",
        line=lines.index(old) + 1,
        old=(old,),
        new=(new,),
    )


def test_a_mutant_runs_the_tests_that_call_it_until_one_fails(tmp_path: Path) -> None:
    refusal = "            if key not in TOPIC_KEYS:"
    seen = mutant_of_config(refusal, refusal.replace("not in", "in"))
    same = mutant_of_config(refusal, refusal + "  # the same")
    results = tmp_path / "results.jsonl"
    work = Work(folder=tmp_path, results=results, jobs=2, deadline=math.inf)
    try_mutants(work, [seen, same], "room", "config", ["tests/unit/log/test_config.py"])
    told = {each["name"]: each for each in map(json.loads, results.read_text().splitlines())}
    assert "test_config.py::test_" in told[seen.name]["by"]
    assert (told[same.name]["by"], told[same.name]["tests"] > 10) == ("", True)
    known = Results(results)
    assert [known.waits_for(each, "room") for each in (seen, same)] == [False, False]
    assert known.waits_for(replace(same, body="changed"), "room")
    assert known.outcome(seen).killer == "room"
    assert known.outcome(same).killer == SURVIVED
