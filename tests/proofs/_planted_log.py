"""Faults in what changes a log after it is written: deletion and compaction (D4).

Each is rule, file, text, what stands there instead, and the test that must turn red, as ``Planted``
takes them.
"""

LOG = "tests/unit/log/test_partition_log.py::"
COMPACTION = "tests/unit/log/test_compaction.py::"
FILES = "tests/unit/storage/test_compaction.py::"
RECORDS = "tests/unit/broker/test_delete_records.py::"

LOG_CHANGES = [
    (
        "D4",
        "log/partition_log.py",
        "        self.last_stable_offset = max(stable, self._state.log_start)  # D4\n",
        "        self.last_stable_offset = stable\n",
        LOG + "test_the_lso_rises_to_the_log_start",
    ),
    (
        "D4",
        "broker/partitions/log_starts.py",
        "await directory.checkpoint({}, {each.name: start for each, start in ready.items()})",
        "pass",
        RECORDS + "test_a_power_cut_at_any_step_leaves_the_start_before_or_after",
    ),
    (
        "D4",
        "log/partition_log.py",
        "        limit = min(self.last_stable_offset, synced)\n",
        "        limit = synced\n",
        COMPACTION + "test_nothing_at_or_above_the_last_stable_offset_is_touched",
    ),
    (
        "D4",
        "log/compaction.py",
        "        return record.has_value or not self._has_passed(header)\n",
        "        return record.has_value\n",
        COMPACTION + "test_a_tombstone_stays_until_its_horizon_and_then_goes",
    ),
    (
        "D4",
        "log/compaction.py",
        "        if producer_id in self._open:\n",
        "        if False:\n",
        COMPACTION
        + "test_a_marker_stays_while_a_batch_of_its_transaction_is_there_and_until_its_horizon",
    ),
    (
        "D4",
        "log/compaction.py",
        "            must_stay = is_last or self._is_last_of_producer(header)\n",
        "            must_stay = is_last\n",
        COMPACTION + "test_the_last_batch_of_a_live_producer_stays_emptied",
    ),
    (
        "D4",
        "log/compaction.py",
        "            must_stay = is_last or self._is_last_of_producer(header)\n",
        "            must_stay = self._is_last_of_producer(header)\n",
        COMPACTION + "test_the_last_batch_of_a_file_stays_emptied_where_nothing_else_holds_its_end",
    ),
    (
        "D4",
        "storage/recover.py",
        "        await self._finish_swaps(epochs)\n",
        "",
        FILES + "test_a_power_cut_at_any_operation_loses_nothing_and_brings_nothing_back",
    ),
    (
        "D4",
        "storage/partition_store.py",
        "            if self._segments.get(segment.base_offset) is segment:\n",
        "            if True:\n",
        FILES + "test_a_reader_never_looks_into_a_new_file_with_an_old_plan",
    ),
]
