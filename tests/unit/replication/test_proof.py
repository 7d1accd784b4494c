"""The proof of the cluster's secret: nobody else's bytes pass for it."""

from typing import Any

import pytest

from fencelog.replication.proof import NONCE_BYTES, Introduction, is_sound
from fencelog.types import NodeId

SECRET = b"s" * 32
SAID = Introduction(
    cluster_id="cluster",
    opener=NodeId(1),
    opener_incarnation="a",
    target=NodeId(2),
    target_incarnation="b",
    connection=7,
    opener_nonce=b"o" * NONCE_BYTES,
    target_nonce=b"t" * NONCE_BYTES,
)


def test_both_ends_compute_the_same_proofs() -> None:
    same = Introduction(*SAID)
    assert is_sound(SAID.proof_of_opener(SECRET), same.proof_of_opener(SECRET))
    assert is_sound(SAID.proof_of_target(SECRET), same.proof_of_target(SECRET))


def test_a_reflected_proof_fails() -> None:
    # The opener sends back what it got, in either direction.
    assert not is_sound(SAID.proof_of_opener(SECRET), SAID.proof_of_target(SECRET))
    mirrored = SAID._replace(
        opener=SAID.target,
        opener_incarnation=SAID.target_incarnation,
        target=SAID.opener,
        target_incarnation=SAID.opener_incarnation,
        opener_nonce=SAID.target_nonce,
        target_nonce=SAID.opener_nonce,
    )
    assert not is_sound(SAID.proof_of_opener(SECRET), mirrored.proof_of_opener(SECRET))
    assert not is_sound(SAID.proof_of_opener(SECRET), mirrored.proof_of_target(SECRET))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cluster_id", "cluster2"),
        ("opener", NodeId(3)),
        ("opener_incarnation", "c"),
        ("target", NodeId(3)),
        ("target_incarnation", "c"),
        ("connection", 8),
        ("opener_nonce", b"O" * NONCE_BYTES),
        ("target_nonce", b"T" * NONCE_BYTES),  # a replay: the target's nonce is new each time
    ],
)
def test_a_proof_counts_for_no_other_connection(field: str, value: Any) -> None:
    other = SAID._replace(**{field: value})
    assert not is_sound(SAID.proof_of_opener(SECRET), other.proof_of_opener(SECRET))
    assert not is_sound(SAID.proof_of_target(SECRET), other.proof_of_target(SECRET))


def test_bytes_that_move_from_one_field_to_the_next_change_the_proof() -> None:
    one = SAID._replace(cluster_id="ab", opener_incarnation="c")
    other = SAID._replace(cluster_id="a", opener_incarnation="bc")
    assert one.proof_of_opener(SECRET) != other.proof_of_opener(SECRET)


def test_another_secret_fails() -> None:
    assert not is_sound(SAID.proof_of_opener(SECRET), SAID.proof_of_opener(b"x" * 32))
    assert not is_sound(SAID.proof_of_opener(SECRET), b"")


def test_a_hello_is_for_this_life_of_this_broker_of_this_cluster() -> None:
    assert SAID.refusal("cluster", NodeId(2), "b") is None
    assert SAID.refusal("other", NodeId(2), "b") == "this is cluster other, not cluster"
    assert SAID.refusal("cluster", NodeId(3), "b") == "this is broker 3, not 2"
    assert SAID.refusal("cluster", NodeId(2), "c") == "broker 2 has begun another life"
    itself = SAID._replace(opener=NodeId(2))
    assert itself.refusal("cluster", NodeId(2), "b") == "broker 2 opens no connection to itself"
    short = SAID._replace(opener_nonce=b"o")
    assert short.refusal("cluster", NodeId(2), "b") == "a nonce of 1 bytes instead of 32"
