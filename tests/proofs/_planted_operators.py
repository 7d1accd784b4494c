"""Faults in what ends or forgets producers from outside: operators' markers, expiry, a start.

Each is rule, file, text, what stands there instead, and the test that must turn red, as ``Planted``
takes them.
"""

OUTSIDE = "tests/unit/coordination/test_operator_markers.py::"
SET_BACK = "tests/unit/broker/test_stale_coordinators.py::"
RETENTION = "tests/unit/coordination/test_transaction_retention.py::"

OPERATORS = [
    (
        "E5",
        "log/producers.py",
        " and state.open_offset < 0:\n",
        ":\n",
        "tests/unit/log/test_idempotence.py::test_an_open_transaction_keeps_its_producer_known",
    ),
    (
        "E5",
        "log/compaction.py",
        " if kept is not None and is_forgotten else kept\n",
        " if kept is None and is_forgotten else kept\n",
        "tests/unit/log/test_compaction.py::"
        "test_a_forgotten_producer_goes_on_after_a_load_though_its_last_batch_is_gone",
    ),
    (
        "E7",
        "coordination/transaction/stale_state.py",
        "if seen.get(producer_id, epoch) <= epoch:",
        "if True:",
        SET_BACK + "test_no_new_record_passes_for_one_of_a_transaction_that_the_coordinator_lost",
    ),
    (
        "E9",
        "coordination/transaction/retention.py",
        "            if each.state in _AT_REST and each.updated_ms <= oldest_kept_ms\n",
        "            if each.updated_ms <= oldest_kept_ms\n",
        RETENTION + "test_an_id_with_something_under_way_is_never_too_old",
    ),
    (
        "E14",
        "coordination/operator_markers.py",
        "    if outcome is TransactionOutcome.LISTED or marker.commit",
        "    if marker.commit",
        OUTSIDE + "test_what_its_coordinator_lists_is_left_alone",
    ),
    (
        "E17",
        "coordination/operator_markers.py",
        " or marker.commit != is_committed:\n",
        ":\n",
        OUTSIDE + "test_what_is_decided_is_ended_as_decided",
    ),
    (
        "E17",
        "coordination/operator_markers.py",
        "    return replace(marker, coordinator_epoch=known)\n",
        "    return marker\n",
        OUTSIDE + "test_a_clients_coordinator_epoch_never_shuts_the_coordinator_out",
    ),
    (
        "E17",
        "client/transaction_admin.py",
        "[each for each in unlisted if _key(each) in still_open]\n",
        "unlisted\n",
        "tests/cli/test_transactions.py::test_what_ends_while_it_is_looked_for_does_not_hang",
    ),
    (
        "E17",
        "coordination/transaction/shard.py",
        "                if is_later(each, producer):\n",
        "                if False:\n",
        SET_BACK + "test_what_came_after_a_commit_of_version_2_is_not_committed_with_it",
    ),
]
