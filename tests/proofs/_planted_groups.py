"""Faults in groups with members: the third counter, and what waits for a transaction's end."""

from tests.proofs._planted_fault import Planted

NODE = "tests/unit/broker/test_groups.py::"
IN_TRANSACTION = "tests/unit/broker/test_group_transactions.py::"
CLIENTS = "tests/conformance/test_groups.py::"
TRANSCRIPT = "tests/scenarios/test_scenarios.py::test_a_transcript_comes_out_as_it_is_written"

WITHOUT_GENERATIONS = (
    "        if error is ErrorCode.NONE and caller.generation != self.generation:\n"
    "            return ErrorCode.ILLEGAL_GENERATION\n"
)

GROUPS = [
    Planted(
        "E8",
        "coordination/group/group.py",
        WITHOUT_GENERATIONS,
        "",
        CLIENTS
        + "test_a_zombie_member_s_transaction_is_refused_and_leaves_nothing[confluent-kafka]",
    ),
    Planted(
        "E8",
        "coordination/group/group.py",
        WITHOUT_GENERATIONS,
        "",
        IN_TRANSACTION + "test_a_stale_member_takes_no_offset_into_a_transaction",
    ),
    Planted(
        "E8",
        "coordination/group/group.py",
        "            if current != member_id:\n"
        "                return ErrorCode.FENCED_INSTANCE_ID\n",
        "",
        IN_TRANSACTION + "test_a_replaced_static_member_takes_no_offset_into_a_transaction",
    ),
    Planted(
        "E8",
        "coordination/group/group.py",
        "two generations have one number.\n        self.store(step, begun)\n",
        "two generations have one number.\n"
        "        vars(self)['_stored_groups'][self.name] = begun\n",
        TRANSCRIPT + "[group_restart]",
    ),
    Planted(
        "E8",
        "coordination/group/shard.py",
        "            if needs_member and partition in asked.fenced:\n",
        "            if False:\n",
        IN_TRANSACTION + "test_a_required_fence_takes_no_offset_of_nobody_into_a_transaction",
    ),
    Planted(
        "E8",
        "coordination/group/shard.py",
        "            self._offsets.store_pending(record.producer_id, group, partition, kept)\n",
        "            self._offsets.store(group, partition, kept)\n",
        IN_TRANSACTION + "test_an_aborted_offset_never_was",
    ),
    Planted(
        "E8",
        "broker/handlers/group_offsets.py",
        "    unstable = pending.intersection(names)\n",
        "    unstable = frozenset[TopicPartition]()\n",
        IN_TRANSACTION + "test_an_offset_counts_with_its_marker_and_nobody_reads_past_it_before",
    ),
    Planted(
        "E15",
        "broker/coordinators/runtime.py",
        "        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID\n",
        "        producer_id = NO_PRODUCER_ID\n",
        IN_TRANSACTION + "test_pending_offsets_survive_a_power_cut_and_end_with_their_transaction",
    ),
    Planted(
        "E14",
        "broker/handlers/group_offsets.py",
        "        if errors[partition.name] is not ErrorCode.NONE:\n"
        "            return dict.fromkeys(asked.offsets, errors[partition.name])\n"
        "    pending",
        "    pending",
        IN_TRANSACTION + "test_an_offset_outside_an_open_transaction_is_refused",
    ),
    Planted(
        "E16",
        "broker/coordinators/runtime.py",
        "        loaded.partition.purgatory.when_committed("
        "loaded.partition.log.log_end_offset, done)\n",
        "        done(None)\n",
        NODE + "test_no_member_hears_of_a_generation_that_is_not_stored",
    ),
]
