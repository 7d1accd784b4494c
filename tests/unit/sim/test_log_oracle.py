"""The oracle at the disk: each rule that it holds batches to can be broken, and is noticed."""

from collections.abc import Callable

import pytest

from fencelog.coordination.transaction.state import EPOCH_MAX, TxnState
from fencelog.coordination.versioned.records import ProducerKey, forget
from fencelog.coordination.versioned.state import Phase
from fencelog.types import ProducerId
from fencelog.wire.batch import SEQUENCE_MODULUS
from tests.unit.sim.files import (
    DATA,
    GROUPS,
    OTHER,
    TRANSACTIONS,
    VERSIONED,
    Files,
    app,
    committed_offset,
    data,
    joined,
    marker,
    records,
    transaction,
)

Story = Callable[[Files], None]


def opened(files: Files, *, producer_id: int = 7, epoch: int = 0, name: str = "t") -> None:
    """Open a transaction on DATA and OTHER, and write to DATA."""
    empty = transaction(TxnState.EMPTY, producer_id, epoch, name=name)
    files.append(TRANSACTIONS, records(empty))
    ongoing = transaction(TxnState.ONGOING, producer_id, epoch, (DATA, OTHER), name)
    files.append(TRANSACTIONS, records(ongoing))
    files.append(DATA, data(producer_id, epoch, 0, txn=True))


def decided(files: Files, *, commit: bool = True, epoch: int = 0) -> None:
    """Decide the transaction that ``opened`` has opened."""
    state = TxnState.PREPARE_COMMIT if commit else TxnState.PREPARE_ABORT
    files.append(TRANSACTIONS, records(transaction(state, epoch=epoch, partitions=(DATA, OTHER))))


def completed(files: Files, *, commit: bool = True, epoch: int = 0) -> None:
    state = TxnState.COMPLETE_COMMIT if commit else TxnState.COMPLETE_ABORT
    files.append(TRANSACTIONS, records(transaction(state, epoch=epoch)))


def written_by_app(files: Files) -> None:
    """Two producers of an app have written to DATA."""
    files.append(VERSIONED, records(app(Phase.OPEN), joined(1), joined(2)))
    for producer_id in (1, 2):
        files.append(VERSIONED, records(joined(producer_id, DATA)))
        files.append(DATA, data(producer_id, txn=True))


def test_a_correct_broker_has_no_violations() -> None:
    files = Files()
    files.append(DATA, data(), data(3, 0, SEQUENCE_MODULUS - 2, count=3), data(3, 0, 1))  # E1
    files.append(DATA, data(3, 4, 0))  # E6
    opened(files)
    files.append(DATA, data(7, 0, 1, txn=True), leader_epoch=1)
    decided(files, commit=False)
    files.append(DATA, marker(7, commit=False), leader_epoch=1)
    files.append(OTHER, marker(7, commit=False))
    completed(files, commit=False)
    ongoing = transaction(TxnState.ONGOING, partitions=(DATA,))
    files.append(TRANSACTIONS, records(ongoing))
    end = files.log().end
    files.append(DATA, data(7, 0, 2, txn=True), segment=end, leader_epoch=1)
    fenced = transaction(TxnState.PREPARE_ABORT, epoch=1, partitions=(DATA,))
    files.append(TRANSACTIONS, records(fenced))
    files.append(DATA, marker(7, 1, commit=False), segment=end, leader_epoch=1)
    assert files.said == ""
    assert [tuple(each)[1:] for each in files.log().ledger.aborted] == [(6, 8), (9, 10)]


def test_a_correct_versioned_transaction_has_no_violations() -> None:
    files = Files()
    written_by_app(files)
    done = app(Phase.COMMITTING, committing=[1], last_version=0)
    files.append(VERSIONED, records(done))
    files.append(DATA, marker(1, drop=True), marker(2, commit=False, drop=True))
    tombstones = [forget(ProducerKey(ProducerId(each))) for each in (1, 2)]
    files.append(VERSIONED, records(*tombstones, app(Phase.IDLE, last_version=0)))
    files.append(VERSIONED, records(app(Phase.OPEN, incarnation=2, last_version=0)))
    assert files.said == ""
    assert not files.log().ledger.producers


def repeated(files: Files) -> None:
    files.append(DATA, data(3, 0, 0), data(3, 0, 0))


def skipped(files: Files) -> None:
    files.append(DATA, data(3, 0, 0), data(3, 0, 2))


def fenced(files: Files) -> None:
    files.append(DATA, data(3, 1, 0), data(3, 0, 0))


def begun_in_the_middle(files: Files) -> None:
    files.append(DATA, data(3, 0, 0), data(3, 1, 1))


def gap(files: Files) -> None:
    files.append(DATA, data())
    files.append(DATA, data(), offset=2)


def older_leader(files: Files) -> None:
    files.append(DATA, data(), leader_epoch=2)
    files.append(DATA, data(), leader_epoch=1)


def damaged(files: Files) -> None:
    batch = data()
    batch[-1] ^= 1
    files.append(DATA, batch)


def no_batch(files: Files) -> None:
    files.write(DATA, bytes(100))


def hole(files: Files) -> None:
    files.append(DATA, data())
    files.write(DATA, b"half a batch, for the disk was full")
    files.append(DATA, data())


def misnamed(files: Files) -> None:
    files.append(DATA, data())
    files.append(DATA, data(), segment=2)


def unknown_transaction(files: Files) -> None:
    files.append(DATA, data(7, txn=True))


def after_its_marker(files: Files) -> None:
    opened(files)
    decided(files)
    files.append(DATA, marker(7), data(7, 0, 1, txn=True))


def other_epoch(files: Files) -> None:
    opened(files)
    files.append(OTHER, data(7, 1, 0, txn=True))


def not_yet_committed(files: Files) -> None:
    files.uncommitted.add(TRANSACTIONS)
    opened(files)


def plain_inside(files: Files) -> None:
    opened(files)
    files.append(DATA, data(7, 0, 1))


def incarnation_inside(files: Files) -> None:
    opened(files)
    files.append(DATA, data(7, 1, 0, txn=True))


def undecided(files: Files) -> None:
    opened(files)
    files.append(DATA, marker(7))


def undecided_marker(files: Files) -> None:
    files.append(DATA, marker(9, commit=False))


def against_the_decision(files: Files) -> None:
    opened(files)
    decided(files, commit=False)
    files.append(DATA, marker(7, commit=True))


def decision_not_committed(files: Files) -> None:
    opened(files)
    files.uncommitted.add(TRANSACTIONS)
    decided(files)
    files.append(DATA, marker(7))


def marked_twice(files: Files) -> None:
    opened(files)
    decided(files)
    files.append(DATA, marker(7), marker(7))


def of_a_dead_coordinator(files: Files) -> None:
    opened(files)
    decided(files)
    files.append(DATA, marker(7, coordinator=5))
    completed(files)
    files.append(TRANSACTIONS, records(transaction(TxnState.ONGOING, partitions=(DATA,))))
    files.append(DATA, data(7, 0, 1, txn=True))
    decided(files)
    files.append(DATA, marker(7, coordinator=4))


def of_an_older_epoch(files: Files) -> None:
    opened(files, epoch=2)
    decided(files, epoch=2)
    files.append(DATA, marker(7, 1))


def completed_while_open(files: Files) -> None:
    opened(files)
    decided(files)
    completed(files)


def marker_not_committed(files: Files) -> None:
    opened(files)
    decided(files)
    files.append(DATA, marker(7))
    files.uncommitted.add(DATA)
    completed(files)


def dropped_from_the_list(files: Files) -> None:
    opened(files)
    decided(files)
    rest = transaction(TxnState.PREPARE_COMMIT, partitions=(OTHER,))
    files.append(TRANSACTIONS, records(rest))


def no_such_step(files: Files) -> None:
    opened(files)
    completed(files)


def ended_again(files: Files, epoch: int = 5) -> None:
    opened(files)
    decided(files)
    files.append(DATA, marker(7))
    files.append(OTHER, marker(7))
    completed(files)
    completed(files, epoch=epoch)


def back_to_an_older_epoch(files: Files) -> None:
    files.append(TRANSACTIONS, records(transaction(TxnState.EMPTY, epoch=3)))
    files.append(TRANSACTIONS, records(transaction(TxnState.EMPTY, epoch=2)))


def given_twice(files: Files) -> None:
    files.append(TRANSACTIONS, records(transaction(TxnState.EMPTY, 7, name="one")))
    files.append(TRANSACTIONS, records(transaction(TxnState.EMPTY, 7, name="two")))


def markers_apart(files: Files) -> None:
    written_by_app(files)
    files.append(VERSIONED, records(app(Phase.COMMITTING, committing=[1, 2], last_version=0)))
    files.append(DATA, marker(1, drop=True))
    files.append(DATA, marker(2, drop=True))


def stranger_committed(files: Files) -> None:
    written_by_app(files)
    files.append(VERSIONED, records(app(Phase.COMMITTING, committing=[1, 3], last_version=0)))


def attempt_committed_that_was_not_named(files: Files) -> None:
    written_by_app(files)
    files.append(VERSIONED, records(app(Phase.COMMITTING, committing=[1], last_version=0)))
    files.append(DATA, marker(1, drop=True), marker(2, commit=True, drop=True))


def enlisted_too_late(files: Files) -> None:
    written_by_app(files)
    files.append(VERSIONED, records(app(Phase.ABORTING)))
    files.append(VERSIONED, records(joined(1, DATA, OTHER)))


def forgotten_while_open(files: Files) -> None:
    written_by_app(files)
    files.append(VERSIONED, records(app(Phase.ABORTING)))
    files.append(VERSIONED, records(forget(ProducerKey(ProducerId(1)))))


def version_with_two_contents(files: Files) -> None:
    files.append(VERSIONED, records(app(Phase.IDLE, last_version=3, fingerprint=b"one")))
    files.append(VERSIONED, records(app(Phase.IDLE, last_version=3, fingerprint=b"two")))


def version_skipped(files: Files) -> None:
    files.append(VERSIONED, records(app(Phase.IDLE, last_version=3)))
    files.append(VERSIONED, records(app(Phase.IDLE, last_version=5)))


def opened_twice(files: Files) -> None:
    files.append(VERSIONED, records(app(Phase.OPEN), joined(1)))
    files.append(VERSIONED, records(app(Phase.OPEN, incarnation=2)))


def offsets_back(files: Files) -> None:
    files.append(GROUPS, records(committed_offset(5)))
    files.append(GROUPS, records(committed_offset(4)))


def test_an_id_is_retired_at_its_last_epoch() -> None:  # E7
    files = Files()
    ended_again(files, EPOCH_MAX)
    assert files.said == ""


@pytest.mark.parametrize(
    ("story", "expected"),
    [
        (repeated, "orders-0: offset 1: sequence 0 twice (E4): expected 1 of epoch 0"),
        (skipped, "orders-0: offset 1: sequence 2 after a gap (E5): expected 1 of epoch 0"),
        (fenced, "orders-0: offset 1: a batch of epoch 0, fenced by 1 (E2)"),
        (begun_in_the_middle, "offset 1: sequence 1 after a gap (E5): expected 0 of epoch 1"),
        (gap, "orders-0: offset 2 where 1 is due (F1, D3)"),
        (older_leader, "orders-0: offset 1: leader epoch 1 after 2 (D3)"),
        (damaged, "orders-0: offset 0: wrong CRC (D3)"),
        (no_batch, "orders-0: no batch at 0 of 0: record batch with magic 0"),
        (hole, "orders-0: bytes appended at 108 of 0, expected 73 (D2)"),
        (misnamed, "orders-0: file 2 begins where the log ends at 1 (D3)"),
        (unknown_transaction, "offset 0: opens a transaction that no coordinator knows here (E14)"),
        (after_its_marker, "offset 2: opens a transaction that no coordinator knows here (E14)"),
        (other_epoch, "orders-1: offset 0: opens a transaction in epoch 1, not 0 (E14)"),
        (not_yet_committed, "before the coordinator's record of it is committed (E16)"),
        (plain_inside, "offset 1: a plain batch inside the producer's open transaction (E10)"),
        (incarnation_inside, "epoch 1 inside the open transaction of epoch 0 (E7)"),
        (undecided, "offset 1: a marker commits a transaction of t, which is Ongoing (E10, E17)"),
        (undecided_marker, "orders-0: offset 0: a marker that no coordinator decided (E16)"),
        (against_the_decision, "a marker commits a transaction of t, which is PrepareAbort (E10)"),
        (decision_not_committed, "a transaction of t, whose decision is not committed (E16)"),
        (marked_twice, "offset 2: a second marker of epoch 0, though nothing is open (E10)"),
        (of_a_dead_coordinator, "a marker of coordinator epoch 4 after one of 5 (E17)"),
        (of_an_older_epoch, "offset 1: a marker of epoch 1 ends a transaction of 2 (E14)"),
        (completed_while_open, "counted as marked, though producer 7 is open on orders-0"),
        (marker_not_committed, "counts a marker at 1 of orders-0 that is not committed (E17)"),
        (dropped_from_the_list, "counted as marked, though producer 7 is open on orders-0"),
        (no_such_step, "t goes from Ongoing to CompleteCommit (E9)"),
        (ended_again, "t goes from CompleteCommit to CompleteCommit (E9)"),
        (back_to_an_older_epoch, "t goes from epoch 3 back to 2 (E7)"),
        (
            given_twice,
            "producer id 7 of transactional id one is given to transactional id two (E1)",
        ),
        (markers_apart, "the marker of producer 1 at 2 is appended without that of 2 (V6)"),
        (stranger_committed, "app a commits 3, not of its incarnation (V1)"),
        (attempt_committed_that_was_not_named, "commits producer 2 of app a, version 1, against"),
        (enlisted_too_late, "producer 1 is let into app a, which is not open (V1)"),
        (forgotten_while_open, "counted as marked, though producer 1 is open on orders-0"),
        (version_with_two_contents, "app a has version 3 with two fingerprints (V3)"),
        (version_skipped, "app a goes from version 3 to 5 (V3)"),
        (opened_twice, "app a begins anew, with producer 1 from before (V1)"),
        (offsets_back, "group g goes from 5 back to 4 on orders-0, and no client asked"),
    ],
    ids=lambda each: each.__name__ if callable(each) else "",
)
def test_the_oracle_reports_a_violation(story: Story, expected: str) -> None:
    files = Files()
    story(files)
    assert expected in files.said


def test_a_lower_commit_that_a_client_asked_for_is_legal() -> None:
    files = Files()
    files.append(GROUPS, records(committed_offset(5)))
    files.oracle.coordinators.shared.asked["g", DATA, 4] += 1
    files.append(GROUPS, records(committed_offset(4)))
    assert files.said == ""


def test_a_start_may_abort_what_no_coordinator_lists_and_not_commit_it() -> None:  # E17
    files = Files()
    files.append(DATA, data(7, txn=True))
    files.oracle.violations.clear()
    files.oracle.serving = False
    files.append(DATA, marker(7, commit=False))
    assert files.said == ""
    files.append(DATA, marker(8, commit=True))
    assert "a marker that no coordinator decided" in files.said
    files.oracle.violations.clear()
    opened(files, producer_id=9)
    files.append(DATA, marker(9, commit=False))
    assert "a marker aborts a transaction of t, which is Ongoing" in files.said


def test_a_write_that_fails_between_two_markers_does_not_part_them() -> None:  # V6, D2
    files = Files()
    written_by_app(files)
    files.append(VERSIONED, records(app(Phase.COMMITTING, committing=[1, 2], last_version=0)))
    files.append(DATA, marker(1, drop=True))
    files.crash()
    files.append(DATA, marker(2, drop=True))
    assert files.said == ""


def test_a_crash_may_lose_what_was_not_promised() -> None:  # E15
    files = Files()
    files.append(DATA, data(3, 0, 0))
    files.append(DATA, data(3, 0, 1))
    files.crash(promised=1, lost=10)
    # Recovery cuts what is left of the batch, and the producer sends it again.
    assert "after a crash 136 bytes in file 0, of which only 73 are as they were" in files.said
    files.oracle.violations.clear()
    files.crash(promised=1, lost=63)
    files.append(DATA, data(3, 0, 1))
    assert files.said == ""


def test_a_crash_may_not_lose_what_was_promised() -> None:  # D1
    files = Files()
    files.append(DATA, data())
    files.append(DATA, data())
    files.crash(promised=2, lost=73)
    assert files.said == "orders-0: ends at 1 after a crash, though 2 was promised (D1, E15)"


def test_a_recovery_may_not_change_what_it_keeps() -> None:  # E15
    files = Files()
    files.append(DATA, data(), data())
    for content in files.files.values():
        content[80] ^= 1
    files.crash(promised=1)
    assert "after a crash 146 bytes in file 0, of which only 73 are as they were" in files.said


def test_records_that_a_coordinator_lost_in_a_crash_are_forgotten() -> None:  # E16
    files = Files()
    opened(files)
    size = len(next(iter(files.files.values())))
    decided(files)
    lost = len(next(iter(files.files.values()))) - size
    files.crash(TRANSACTIONS, lost=lost)
    files.append(DATA, marker(7))
    assert "a transaction of t, which is Ongoing" in files.said


def test_bytes_appended_after_a_start_are_distinguished_from_earlier_ones() -> None:
    files = Files()
    files.append(DATA, data(3, 0, 0))
    files.log().promised = 1
    files.oracle.crashed()
    files.append(DATA, data(3, 0, 1))  # the log was not observed since
    assert files.said == ""
    assert files.log().end == 2


def test_deleted_segments_are_not_missed() -> None:  # D4
    files = Files()
    files.append(DATA, data(3, 0, 0))
    files.append(DATA, data(3, 0, 1), segment=1)
    files.log().log_start = 1
    del files.files["orders-0/00000000000000000000.log"]
    files.crash(promised=2)
    assert files.said == ""
    assert [batch.segment for batch in files.log().batches] == [1]


def test_a_topic_that_is_made_again_has_another_log() -> None:
    files = Files()
    files.give(DATA, bytes(16))
    files.append(DATA, data(), data())
    files.give(DATA, bytes(15) + b"\x01")
    files.files.clear()
    files.append(DATA, data(), offset=0)
    assert files.said == ""


def test_the_last_stable_offset_waits_for_markers_below_the_high_watermark() -> None:  # E10
    files = Files()
    files.append(DATA, data())
    opened(files)
    files.append(DATA, data())
    ledger = files.log().ledger
    assert ledger.last_stable_offset(3, 0) == 1
    decided(files)
    files.append(DATA, marker(7))
    assert ledger.last_stable_offset(3, 0) == 1
    assert ledger.last_stable_offset(3, 2) == 2  # D4
    assert ledger.last_stable_offset(4, 0) == 4
