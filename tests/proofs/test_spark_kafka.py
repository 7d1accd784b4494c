"""A slice of ``./dev prove spark-kafka``, and what its report says."""

import random
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fencelog.spark.java import JavaNotFoundError
from tests.proofs import _spark_kafka_kills as part
from tests.proofs._spark_kafka_report import Proof, report
from tests.proofs._spark_kills import Verdict
from tests.support.jvm.jars import JarsMissingError


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_output_on_apache_kafka_stays_exact_through_kills_and_a_zombie(
    tmp_path: Path,
) -> None:  # S2, S3, S5, V2, V3
    try:
        verdict = part.run(tmp_path, kills=part.SLICE, seed=random.randrange(10**6))
    except (JarsMissingError, JavaNotFoundError) as missing:
        pytest.skip(f"no Apache Kafka: {missing}")
    assert verdict.problems == [], verdict
    assert len(verdict.kills) == len(part.SLICE)
    assert verdict.zombies == 1
    assert verdict.read == verdict.sent > 0


def test_every_point_is_struck_before_any_is_drawn() -> None:
    drawn = part.choose(200, random.Random(1))
    assert set(part.CHOSEN) < set(drawn)
    assert {kill.point for kill in part.CHOSEN} == {*part.IN_TASKS, *part.IN_DRIVER, "start"}
    assert part.choose(5, random.Random(2)) == list(part.CHOSEN[:5])


def test_a_proof_that_can_not_see_duplicates_does_not_hold() -> None:
    began = datetime(2026, 11, 23, tzinfo=UTC)
    sound = Verdict(seed=1, kills=["driver at ended, batch 1"], sent=9, read=9)
    control = part.Control(kills=1, sent=9, read=12, doubled=3)
    proof = Proof(began=began, seed=1, rows=[sound], control=control)
    assert proof.holds
    assert "| records doubled | 0 | 3 |" in report(proof)
    blind = Proof(began=began, seed=1, rows=[sound], control=part.Control(kills=1))
    assert not blind.holds
    sound.problems.append("2 records are doubled")
    assert not proof.holds
    assert "DOES NOT HOLD" in report(proof)
