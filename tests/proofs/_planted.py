"""Every rule in force, where it is kept, and the test that turns red when that line is taken out.

A planted fault replaces text that stands exactly once in a file below ``src/fencelog``. The product
has no switches; the fault exists in a copy only. ``docs/internals/rules.md`` is written from here.
"""

from tests.proofs._planted_fault import Planted
from tests.proofs._planted_groups import GROUPS
from tests.proofs._planted_log import LOG_CHANGES
from tests.proofs._planted_operators import OPERATORS
from tests.proofs._planted_version_2 import VERSION_2

RULES = {
    "D1": "An answer waits for what the mode promises: the sync, or the page cache.",
    "D2": "After a failed write or sync nothing is acknowledged; recovery rewrites and syncs.",
    "D3": "Batches are CRC-checked on arrival and in recovery; damage is named, never cut away.",
    "D4": "Deletion never passes the high watermark, nor compaction the LSO; nothing comes back.",
    "E1": "Sequences count records, per producer and partition, and wrap to 0.",
    "E2": "An older epoch is fenced and writes nothing.",
    "E3": "The next sequence is appended; check and append are one step.",
    "E4": "A stored batch is answered with its first offset, once that is committed.",
    "E5": "A gap is out of order; without state any sequence begins, in version 2 only 0.",
    "E6": "A newer epoch is adopted, with sequence 0 only.",
    "E7": "The older incarnation is fenced, its transaction aborted first; ids are never reused.",
    "E8": "A stale generation or member takes no offset along; a pending one is nobody's yet.",
    "E9": "The states are a table; no client writes to internal topics.",
    "E10": "An open transaction holds the LSO back; aborted records are never shown.",
    "E11": "A crash between output and offsets harms nobody where both are in a transaction.",
    "E12": "A transaction past its timeout is aborted under a new epoch.",
    "E13": "A lost answer leaves one copy; a batch in flight never overtakes a failed one.",
    "E14": "A delayed request of one transaction never touches the next one.",
    "E15": "Recovery rebuilds producers and transactions from the log alone.",
    "E16": "Markers follow committed decisions only; answers wait for what they reveal.",
    "E17": "A lower coordinator epoch is refused; deleted partitions count as done.",
    "F2": "A record is committed once it is durable here; the high watermark ends there.",
    "F5": "A producer waits for the commit (acks=all), or is answered at once.",
    "F6": "A reader sees up to the LSO, the high watermark or the written end, as it asked.",
    "F7": "The leader epochs and where they began are stored with the log.",
    "V1": "A commit succeeds only if every named producer is in the open incarnation.",
    "V2": "A new run takes over; earlier ones are fenced.",
    "V3": "A repeated version does nothing; another fingerprint, an old or a far one is refused.",
    "V4": "Another query may not use the app unless it takes over.",
    "V5": "A producer is enlisted durably before it writes; its marker drops its state.",
    "V6": "All markers of a transaction on a partition are one append, or none.",
    "V7": "The timeout runs from the last join or renewal.",
    "V8": "Versioned transactions have a schema and a topic of their own.",
    "S1": "The columns are those of Spark's Kafka connector, in pure Python.",
    "S2": "A replay sees the same input; a write returns when all is acknowledged.",
    "S3": "A batch is one transaction; a repeated batch writes nothing.",
    "S4": "An attempt that the commit does not name is aborted.",
    "S5": "A second driver fences the first.",
    "S6": "Progress is a consumer group's; lost records stop the query.",
    "S7": "The same job runs locally and on a cluster.",
}

__all__ = ["PLANTED", "RULES", "SEEN", "Planted"]

IDEMPOTENCE = "tests/unit/log/test_idempotence.py::"
TRANSACTIONS = "tests/unit/log/test_transactions.py::"
VERIFICATION = "tests/unit/log/test_verification.py::"
RECOVERY = "tests/unit/storage/test_recovery.py::"
STORE = "tests/unit/storage/test_partition_store.py::"
PRODUCE = "tests/unit/broker/test_produce.py::"
TRANSCRIPT = "tests/scenarios/test_scenarios.py::test_a_transcript_comes_out_as_it_is_written"

DURABILITY = [
    Planted(
        "D1",
        "broker/partitions/log_flusher.py",
        "            self._syncing.add(partition)\n",
        "            self._syncing.add(partition)\n            partition.flushed(end_offset)\n",
        PRODUCE + "test_an_answer_waits_for_the_sync_in_fsync_mode",
    ),
    Planted(
        "D1",
        "storage/partition_store.py",
        "                await self._sync_names()\n                while self._syncing:\n",
        "                while self._syncing:\n",
        STORE + "test_data_then_directory_are_synced_before_a_new_segment_counts_as_durable",
    ),
    Planted(
        "D1",
        "adapters/sqlite_metadata.py",
        "PRAGMA synchronous = FULL",
        "PRAGMA synchronous = OFF",
        "tests/unit/adapters/test_sqlite_metadata.py::test_each_write_is_synced",
    ),
    Planted(
        "D2",
        "log/partition_log.py",
        "if self._failed or end_offset < self.high_watermark:",
        "if end_offset < self.high_watermark:",
        "tests/unit/log/test_partition_log.py::test_a_failed_log_appends_and_acknowledges_nothing",
    ),
    Planted(
        "D2",
        "storage/recover.py",
        "        await self._rewrite(builder, base_offsets, cut=bad is not None)\n",
        "",
        RECOVERY + "test_what_recovery_serves_survives_a_power_cut_that_follows",
    ),
    Planted(
        "D2",
        "adapters/file_disk.py",
        'self._failure = f"an earlier sync failed',
        '_ = f"an earlier sync failed',
        "tests/unit/adapters/test_file_disk.py::test_a_failed_sync_is_never_tried_again",
    ),
    Planted(
        "D3",
        "wire/batch.py",
        "    if not check_crc(batch):\n        return ErrorCode.CORRUPT_MESSAGE\n",
        "",
        PRODUCE + "test_a_damaged_batch_is_refused_on_arrival",
    ),
    Planted(
        "D3",
        "storage/recover.py",
        "        if offset < self._synced:\n",
        "        if False:\n",
        RECOVERY + "test_a_bad_batch_below_the_recovery_point_is_damage_and_named",
    ),
    Planted(
        "D3",
        "storage/partition_store.py",
        "            if full.is_dirty:\n                await self._sync_segment(full)\n",
        "",
        STORE + "test_a_full_segment_is_synced_before_its_successor_exists",
    ),
]

IDEMPOTENT_PRODUCERS = [
    Planted(
        "E1",
        "log/producers.py",
        "return (first_sequence + last_offset_delta) & _SEQUENCE_MASK",
        "return first_sequence + last_offset_delta",
        IDEMPOTENCE + "test_sequences_wrap_to_zero",
    ),
    Planted(
        "E2",
        "log/producers.py",
        "    if epoch < state.epoch:\n        return ErrorCode.INVALID_PRODUCER_EPOCH  # E2\n",
        "",
        IDEMPOTENCE + "test_a_lower_epoch_is_fenced_and_writes_nothing",
    ),
    Planted(
        "E2",
        "coordination/transaction/ending.py",
        "    if current.successor.producer_epoch != asked.producer_epoch:\n",
        "    if False:\n",
        TRANSCRIPT + "[transaction_fencing]",
    ),
    Planted(
        "E3",
        "log/producers.py",
        "self.next_sequence = (batch.last_sequence + 1) & _SEQUENCE_MASK",
        "self.next_sequence = batch.last_sequence",
        IDEMPOTENCE + "test_the_next_sequence_is_appended_and_gets_the_next_offsets",
    ),
    Planted(
        "E4",
        "log/producers.py",
        "                return stored  # E4\n",
        "                continue\n",
        IDEMPOTENCE + "test_each_of_the_last_five_batches_is_known_again",
    ),
    Planted(
        "E4",
        "broker/handlers/produce.py",
        "    waiting.wait(topic, result, outcome.end_offset, partition)\n",
        "    if isinstance(outcome, Appended):\n"
        "        waiting.wait(topic, result, outcome.end_offset, partition)\n"
        "    else:\n"
        "        waiting.settle(topic, result)\n",
        PRODUCE + "test_a_duplicate_is_answered_only_once_its_original_is_committed",
    ),
    Planted(
        "E5",
        "log/producers.py",
        "    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER  # E4, E5\n",
        "    return None\n",
        IDEMPOTENCE + "test_what_is_no_exact_repetition_is_out_of_order",
    ),
    Planted(
        "E6",
        "log/producers.py",
        "expected = state.next_sequence if epoch == state.epoch else 0",
        "expected = state.next_sequence if epoch == state.epoch else first_sequence",
        IDEMPOTENCE + "test_a_higher_epoch_is_adopted_with_sequence_zero_only",
    ),
    Planted(
        "E13",
        "log/verification.py",
        "            may_begin = guard.lowest_sequence < 0 or sequence <= guard.lowest_sequence\n",
        "            may_begin = True\n",
        VERIFICATION + "test_a_batch_verified_sooner_never_overtakes_an_earlier_one",
    ),
    Planted(
        "E13",
        "log/partition_log.py",
        "            if rejected is not None:\n"
        "                self.refused(header)\n"
        "                return rejected\n",
        "            if rejected is not None:\n                return rejected\n",
        IDEMPOTENCE + "test_a_batch_in_flight_never_overtakes_a_first_one_that_was_too_large",
    ),
]

TRANSACTIONAL_PRODUCERS = [
    Planted(
        "E7",
        "coordination/transaction/shard.py",
        "        elif current.state is TxnState.ONGOING or current.state.is_prepared:\n"
        "            return _fence_open(current, asked, wall_ms)\n",
        "",
        TRANSCRIPT + "[transaction_fencing]",
    ),
    Planted(
        "E7",
        "coordination/transaction/shard.py",
        "    if current.producer.producer_epoch >= EPOCH_EXHAUSTED:\n"
        "        return ProducerIdAndEpoch(new_producer_id, ProducerEpoch(0))\n",
        "",
        TRANSCRIPT + "[transaction_exhausted_epoch]",
    ),
    Planted(
        "E7",
        "broker/coordinators/producer_ids.py",
        "begin = max(value, minimum)",
        "begin = value",
        "tests/unit/broker/test_producer_ids.py"
        "::test_no_id_that_a_log_has_seen_is_handed_out_again",
    ),
    Planted(
        "E9",
        "broker/handlers/produce.py",
        "if known is None or known.internal:",
        "if known is None:",
        PRODUCE + "test_clients_may_not_write_to_internal_topics",
    ),
    Planted(
        "E10",
        "log/transactions.py",
        "if marker_offset is None or marker_offset >= high_watermark:",
        "if marker_offset is not None and marker_offset >= high_watermark:",
        TRANSACTIONS + "test_an_open_transaction_takes_offsets_and_holds_the_lso_back",
    ),
    Planted(
        "E10",
        "log/transactions.py",
        "        if not commit:\n",
        "        if False:\n",
        TRANSACTIONS + "test_a_transactional_reader_gets_nothing_of_an_aborted_transaction",
    ),
    Planted(
        "E12",
        "coordination/transaction/shard.py",
        "            if deadline <= now\n",
        "            if False\n",
        TRANSCRIPT + "[transaction_timeout]",
    ),
    Planted(
        "E14",
        "log/validation.py",
        "if attributes & TRANSACTIONAL and not (is_open",
        "if False and not (is_open",
        VERIFICATION + "test_the_first_append_of_a_transaction_needs_a_guard",
    ),
    Planted(
        "E14",
        "log/partition_log.py",
        "            self._guards.invalidate(marker)\n",
        "",
        VERIFICATION + "test_a_marker_between_question_and_append_voids_the_guard",
    ),
    Planted(
        "E15",
        "storage/recover.py",
        "_marker(batch) if header.is_control else None",
        "None",
        RECOVERY + "test_producers_and_transactions_are_rebuilt_from_the_log_alone",
    ),
    Planted(
        "E16",
        "coordination/transaction/shard.py",
        "            if decided_at < committed\n",
        "            if True\n",
        TRANSCRIPT + "[transaction_crash]",
    ),
    Planted(
        "E16",
        "coordination/versioned/shard.py",
        "if at < committed]",
        "if True]",
        TRANSCRIPT + "[versioned_crash]",
    ),
    Planted(
        "E17",
        "log/validation.py",
        "    if marker.coordinator_epoch < state.coordinator_epoch:  # E17\n",
        "    if False:\n",
        TRANSACTIONS + "test_a_marker_of_a_lower_coordinator_epoch_is_refused",
    ),
    Planted(
        "E17",
        "broker/coordinators/marker_sender.py",
        "                done.add(name)  # deleted: nothing is left to mark (E17)\n",
        "",
        "tests/unit/broker/test_transactions.py::"
        "test_a_deleted_topic_holds_no_decided_transaction_up[before the end]",
    ),
]

VERSIONED_TRANSACTIONS = [
    Planted(
        "V1",
        "coordination/versioned/shard.py",
        "        if not named <= {each.producer_id for each in members}:\n",
        "        if False:\n",
        TRANSCRIPT + "[versioned_incarnations]",
    ),
    Planted(
        "V2",
        "coordination/versioned/shard.py",
        "        if not is_driver and self._table.knows_run(_run_key(caller)):\n",
        "        if False:\n",
        TRANSCRIPT + "[versioned_runs]",
    ),
    Planted(
        "V3",
        "coordination/versioned/shard.py",
        "            if fingerprint != arrival.app.fingerprint:\n",
        "            if False:\n",
        TRANSCRIPT + "[versioned_replay]",
    ),
    Planted(
        "V3",
        "coordination/versioned/shard.py",
        "    if app.last_version != NO_VERSION:\n        if version < app.last_version:\n",
        "    if app.last_version != NO_VERSION:\n        if False:\n",
        TRANSCRIPT + "[versioned_replay]",
    ),
    Planted(
        "V4",
        "coordination/versioned/shard.py",
        "        if app.query_id != caller.query_id and not caller.takeover:\n",
        "        if False:\n",
        TRANSCRIPT + "[versioned_takeover]",
    ),
    Planted(
        "V5",
        "coordination/versioned/shard.py",
        "if joined is None or self._table.apps[joined.app].phase is not Phase.OPEN:",
        "if joined is None:",
        TRANSCRIPT + "[versioned_batch]",
    ),
    Planted(
        "V5",
        "log/state.py",
        "            del self.producers[producer_id]  # V5\n            return\n",
        "            pass\n",
        TRANSACTIONS + "test_a_marker_that_drops_the_state_leaves_nothing_of_the_producer",
    ),
    Planted(
        "V6",
        "log/partition_log.py",
        "            rejected = validate_marker(producers.get(marker.producer_id), marker)\n"
        "            if rejected is not None:\n"
        "                return rejected\n",
        "            rejected = validate_marker(producers.get(marker.producer_id), marker)\n"
        "            if rejected is not None:\n"
        "                continue\n",
        TRANSACTIONS + "test_a_group_of_markers_is_written_whole_or_not_at_all",
    ),
    Planted(
        "V7",
        "coordination/versioned/shard.py",
        "        return Decision((write_app(app),), ErrorCode.NONE)\n",
        "        return Decision((), ErrorCode.NONE)\n",
        TRANSCRIPT + "[versioned_incarnations]",
    ),
    Planted(
        "V8",
        "coordination/versioned/records.py",
        "_VALUE_VERSION = 0",
        "_VALUE_VERSION = 1",
        "tests/unit/coordination/test_versioned_records.py"
        "::test_the_bytes_of_version_0_never_change",
    ),
]

SPARK = [
    Planted(
        "S2",
        "spark/options.py",
        '    if isolation == "tail":\n',
        "    if False:\n",
        "tests/unit/spark/test_options.py"
        "::test_tail_is_refused_in_streams_for_a_replay_must_see_the_same_input",
    ),
    Planted(
        "S3",
        "coordination/versioned/shard.py",
        "        if caller.version == app.last_version:\n"
        "            error = ErrorCode.ALREADY_COMMITTED\n"
        "            return Decision(arrival.write(), JoinResult(error=error))\n",
        "",
        TRANSCRIPT + "[versioned_replay]",
    ),
    Planted(
        "S4",
        "coordination/versioned/shard.py",
        "commit=each.producer_id in app.committing,",
        "commit=True,",
        TRANSCRIPT + "[versioned_batch]",
    ),
    Planted(
        "S5",
        "coordination/versioned/shard.py",
        "        if app.phase is Phase.OPEN:\n"
        "            app, tombstones = self._ended(app, Phase.ABORTING)\n",
        "",
        TRANSCRIPT + "[versioned_runs]",
    ),
    Planted(
        "S6",
        "spark/stream_reader.py",
        "            connect(self._options.connection).commit_offsets(group, offsets)\n",
        "            pass\n",
        "tests/spark/test_stream.py::test_progress_shows_as_a_group_s_offsets",
    ),
]

LOG = "tests/unit/log/test_partition_log.py::"
OFFSETS = [
    Planted(
        "D4",
        "log/partition_log.py",
        "        if not state.log_start <= offset <= self.high_watermark:\n",
        "        if not state.log_start <= offset:\n",
        LOG + "test_the_log_start_never_passes_the_high_watermark",
    ),
    Planted(
        "F2",
        "log/partition_log.py",
        "        self.high_watermark = end_offset\n",
        "        self.high_watermark = self._state.log_end\n",
        LOG + "test_the_high_watermark_is_what_is_durable",
    ),
    Planted(
        "F5",
        "broker/handlers/produce.py",
        "if self._pending == 0 or acks == 1:",
        "if self._pending == 0:",
        PRODUCE + "test_acks_below_all_never_wait",
    ),
    Planted(
        "F6",
        "log/partition_log.py",
        "            upper, bound = self.high_watermark, self._unflushed.durable\n",
        "            upper, bound = self._unflushed.written_mark.end_offset, None\n",
        LOG + "test_a_reader_sees_as_far_as_its_isolation",
    ),
    Planted(
        "F7",
        "log/state.py",
        "            self.epochs.begin(leader_epoch, base_offset)\n",
        "            pass\n",
        LOG + "test_the_leader_epoch_checkpoint_comes_with_the_first_batch_of_an_epoch",
    ),
]

PLANTED = [
    *DURABILITY,
    *OFFSETS,
    *IDEMPOTENT_PRODUCERS,
    *TRANSACTIONAL_PRODUCERS,
    *GROUPS,
    *VERSIONED_TRANSACTIONS,
    *SPARK,
    *(Planted(*each) for each in (*LOG_CHANGES, *OPERATORS, *VERSION_2)),
]

# Rules that are seen to hold by a test, without a line that one could take out by itself.
SEEN = {
    "E11": [
        "tests/proofs/test_orders.py::"
        "test_a_crash_within_a_transaction_neither_doubles_nor_loses_records"
    ],
    "E15": [RECOVERY + "test_side_files_are_not_trusted_after_an_unclean_stop"],
    "S1": ["tests/spark/test_batch.py::test_the_columns_are_those_of_sparks_kafka_connector"],
    "S2": [
        "tests/spark/test_crashes.py::test_no_death_of_a_driver_or_task_loses_or_doubles_a_record"
    ],
    "S6": ["tests/spark/test_stream.py::test_lost_records_stop_the_stream_unless_told_otherwise"],
    "S7": ["tests/spark/test_crashes.py::test_a_killed_executor_changes_nothing"],
}
