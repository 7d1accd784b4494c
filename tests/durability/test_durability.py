"""D1 and D2 as a process shows them: nothing is answered before it is where the answer says."""

from collections.abc import Mapping
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
from tests.durability.scenario import RECORDS, SENT, live, live_twice
from tests.proofs._breaks import Break, plant

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
BREAKS = (
    Break(
        name="files are not synced",
        rule="D1",
        file="storage/partition_store.py",
        sound="        await segment.file.sync()\n",
        broken="        pass\n",
    ),
    Break(
        name="new names are not synced",
        rule="D1",
        file="storage/partition_store.py",
        sound="                await self._sync_names()\n                while self._syncing:\n",
        broken="                while self._syncing:\n",
    ),
    Break(
        name="new partitions are not synced",
        rule="D1",
        file="storage/partition_store.py",
        sound="        await disk.sync_directory(parent_of(directory))\n",
        broken="",
    ),
    Break(
        name="answers do not wait for the sync",
        rule="D1",
        file="broker/partitions/log_flusher.py",
        sound="            self._syncing.add(partition)\n",
        broken=(
            "            self._syncing.add(partition)\n            partition.flushed(end_offset)\n"
        ),
    ),
    Break(
        name="metadata is not synced",
        rule="D1",
        file="adapters/sqlite_metadata.py",
        sound="PRAGMA synchronous = FULL",
        broken="PRAGMA synchronous = OFF",
    ),
)
WRITTEN, NAMED, METADATA = "was written and not synced", "the name", "synchronous = 0"
SEEN_AS = {
    "files are not synced": WRITTEN,
    "new names are not synced": NAMED,
    "new partitions are not synced": NAMED,
    "answers do not wait for the sync": WRITTEN,
    "metadata is not synced": METADATA,
}
RECOVERY_BREAKS = (
    Break(
        name="the copied tail is not synced",
        rule="D2",
        file="storage/recover.py",
        sound="            await new.sync()\n",
        broken="",
    ),
    Break(
        name="the tail is left as it is",
        rule="D2",
        file="storage/recover.py",
        sound="        await self._rewrite(builder, base_offsets, cut=bad is not None)\n",
        broken="",
    ),
)


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


@pytest.mark.parametrize("broken", BREAKS, ids=lambda each: each.name.replace(" ", "-"))
def test_a_sync_that_is_taken_out_is_missed(broken: Break, tmp_path: Path) -> None:  # D1
    environment = plant(broken, tmp_path)
    audit = Audit(RECORDS).read(live(tmp_path, durability="fsync", environment=environment))
    assert any(SEEN_AS[broken.name] in each for each in audit.problems), audit.problems


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


@pytest.mark.parametrize("broken", RECOVERY_BREAKS, ids=lambda each: each.name.replace(" ", "-"))
def test_a_sync_that_is_taken_out_of_recovery_is_missed(
    broken: Break, tmp_path: Path
) -> None:  # D2
    audit = tail_after_a_kill(tmp_path, plant(broken, tmp_path))
    assert any(WRITTEN in each for each in audit.problems), audit.problems


def tail_after_a_kill(folder: Path, environment: Mapping[str, str]) -> Audit:
    """What is wrong with the answers of a second life in fsync mode, after one without syncs."""
    first, second = live_twice(folder, environment=environment)
    audit = Audit(RECORDS).read(first)
    (unsynced,) = audit.unsynced
    assert Path(unsynced).parent.name == f"{RECORDS}-0"
    audit.problems.clear()
    return audit.read(second)
