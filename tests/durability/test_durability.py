"""D1 and D2 as a process shows them: nothing is answered before it is where the answer says."""

from pathlib import Path

import pytest

from tests.durability._audit import (
    ADD_PARTITIONS,
    COMMIT_VERSION,
    CREATE_TOPICS,
    END_TXN,
    INIT_PRODUCER_ID,
    JOIN,
    OFFSET_COMMIT,
    PRODUCE,
    Audit,
)
from tests.durability._faults import WRITTEN, find_in_trace, tail_after_a_kill
from tests.durability.scenario import RECORDS, SENT, live
from tests.proofs._found import look_for
from tests.support.faults import Fault, found_by

EVERY_PROMISE = {
    PRODUCE,
    CREATE_TOPICS,
    INIT_PRODUCER_ID,
    ADD_PARTITIONS,
    END_TXN,
    OFFSET_COMMIT,
    JOIN,
    COMMIT_VERSION,
}


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a traced broker in fsync mode that has lived."""
    folder = tmp_path_factory.mktemp("life")
    live(folder, durability="fsync", environment={})
    return folder


def test_each_answer_in_fsync_mode_follows_the_syncs_that_it_promises(life: Path) -> None:  # D1
    audit = Audit(RECORDS).read(life / "trace")
    assert audit.problems == []
    # The trace was not empty where it matters.
    assert audit.answers.keys() >= EVERY_PROMISE
    assert audit.answers[PRODUCE] >= SENT
    segments = list((life / "data").glob(f"{RECORDS}-0/*.log"))
    assert len(segments) > 2, "records crossed into new files"
    internal = ("__transaction_state", "__fencelog_versioned", "__consumer_offsets")
    assert all(any(name.startswith(topic) for name in audit.wrote) for topic in internal)


def test_topics_and_producer_ids_are_stored_before_the_answer(life: Path) -> None:  # D1, E7
    audit = Audit(RECORDS).read(life / "trace")
    assert audit.commits_for[CREATE_TOPICS] == 2
    assert audit.commits_for[INIT_PRODUCER_ID] >= 1, "a block of ids"


@pytest.mark.parametrize("fault", found_by("durability"), ids=lambda each: each.name)
def test_a_sync_that_is_taken_out_is_missed(fault: Fault) -> None:  # D1, D2
    (argument,) = fault.arguments("durability")
    found = look_for(fault, argument, find_in_trace)
    assert found.problems, found


def test_answers_in_os_mode_wait_for_the_write_and_not_for_the_sync(tmp_path: Path) -> None:  # D1
    audit = Audit(RECORDS).read(live(tmp_path, durability="os", environment={}))
    assert any(WRITTEN in each for each in audit.problems)
    assert not any("metadata" in each for each in audit.problems), "synced in every mode (E7)"


def test_a_tail_that_was_never_synced_is_synced_after_a_kill_before_anything_is_answered(
    tmp_path: Path,
) -> None:  # D2
    audit = tail_after_a_kill(tmp_path, {})
    assert audit.problems == []
    assert audit.unsynced == {}
