"""Faults in what tells a delayed request of one transaction from the next one's (E5, E7, E14).

Each is rule, file, text, what stands there instead, and the test that must turn red, as ``Planted``
takes them.
"""

ENDING = "coordination/transaction/ending.py"
TRANSCRIPT = (
    "tests/scenarios/test_scenarios.py::test_a_transcript_comes_out_as_it_is_written"
    "[transaction_version_2"
)
NODE = "tests/unit/broker/test_version_2.py::"
BUGS = "tests/unit/broker/test_kafkas_bugs.py::"
CONNECTIONS = "tests/unit/broker/test_stale_connections.py::"

VERSION_2 = [
    (
        "E5",
        "log/verification.py",
        "            may_begin = sequence <= 0\n",
        "            may_begin = True\n",
        "tests/unit/log/test_verification.py"
        "::test_where_no_sequence_is_known_an_epoch_of_one_transaction_begins_at_0",
    ),
    (
        "E7",
        ENDING,
        "        next_producer_id=new_producer_id if is_last else NO_PRODUCER_ID,\n",
        "",
        NODE + "test_after_the_last_epoch_a_producer_goes_on_under_a_new_id",
    ),
    (
        "E7",
        ENDING,
        "    if asked.producer_epoch == EPOCH_MAX:\n",
        "    if False:\n",
        TRANSCRIPT + "_exhausted]",
    ),
    (
        "E14",
        ENDING,
        "        producer=current.fenced(),\n        previous=asked,\n",
        "        previous=asked,\n",
        BUGS + "test_a_delayed_end_does_not_end_the_next_transaction",
    ),
    (
        "E14",
        ENDING,
        "    return is_ended and current.client_version is ClientVersion.V2\n",
        "    return is_ended\n",
        TRANSCRIPT + "_fencing]",
    ),
    (
        "E14",
        "log/validation.py",
        "    is_late = marker.is_bumped and marker.producer_epoch == state.epoch\n",
        "    is_late = False\n",
        "tests/unit/log/test_transactions.py"
        "::test_a_marker_of_version_2_ends_no_transaction_of_its_own_epoch",
    ),
    (
        "E14",
        "broker/handlers/verification.py",
        "        error = await _add_partitions(broker, transactional_id, producer, partitions)\n",
        "        error = ErrorCode.NONE\n",
        BUGS + "test_a_write_that_arrives_after_the_end_of_its_transaction_leaves_nothing_hanging",
    ),
    (
        "E14",
        "broker/network/stale_connections.py",
        "        if number < newest or number in known.given_up:\n",
        "        if False:\n",
        CONNECTIONS + "test_an_end_from_an_old_connection_does_not_end_the_next_transaction",
    ),
    (
        "E14",
        "broker/network/stale_connections.py",
        "            known.given_up = [*known.given_up, newest][-GIVEN_UP_MAX:]\n",
        "            pass\n",
        CONNECTIONS
        + "test_offsets_of_an_aborted_transaction_from_an_old_connection_are_not_the_next_one_s",
    ),
]
