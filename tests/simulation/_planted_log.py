"""Bugs in the log's rules: sequences, epochs, markers, the last stable offset."""

from tests.simulation._bug import Bug, Edit

PRODUCERS = "log/producers.py"
ADMISSION = "log/validation.py"
STATE = "log/state.py"
TRANSACTIONS = "log/transactions.py"
LOG = "log/partition_log.py"

NO_DEDUPE = Bug(
    "no dedupe",
    "E4",
    "a batch that is stored already is appended again",
    (Edit(PRODUCERS, "                return stored  # E4\n", "                return None\n"),),
)
WINDOW_OF_4 = Bug(
    "dedupe window of 4",
    "E4",
    "the fifth batch in flight, repeated, is out of order",
    (Edit(PRODUCERS, "WINDOW_BATCHES = 5\n", "WINDOW_BATCHES = 4\n"),),
)
WRONG_WRAP = Bug(
    "sequence wrap",
    "E1",
    "after 2³¹ - 1 a sequence of 1 is expected, not 0",
    (
        Edit(
            PRODUCERS,
            "(batch.last_sequence + 1) & _SEQUENCE_MASK\n",
            "(batch.last_sequence + 1) % _SEQUENCE_MASK\n",
        ),
    ),
)
DUPLICATE_ELSEWHERE = Bug(
    "duplicate with another offset",
    "E4",
    "a repeated batch is answered with the offset of the newest one",
    (
        Edit(
            PRODUCERS,
            "                return stored  # E4\n",
            "                return state.batches[-1]\n",
        ),
    ),
)
EPOCH_NOT_ADOPTED = Bug(
    "epoch not adopted",
    "E6",
    "a partition goes on with the epoch that it met first",
    (
        Edit(
            STATE,
            "        elif state.epoch != epoch:\n            state.adopt(epoch)\n",
            "",
        ),
    ),
)
MARKER_ADOPTS_NOTHING = Bug(
    "epoch of a fencing marker not adopted",
    "E7",
    "a fencing marker leaves the older incarnation's epoch in force on the partition, and the"
    " coordinator's answer about it is not asked for",
    (
        Edit(
            STATE,
            "            state.adopt(epoch)  # the coordinator fenced the older incarnation\n",
            "            pass\n",
        ),
        Edit(
            "broker/handlers/produce.py",
            "    if error is ErrorCode.NONE:\n",
            "    if True:\n",
        ),
    ),
    ("queue", "bank"),
)
DEAD_COORDINATOR = Bug(
    "marker of a dead coordinator",
    "E17",
    "a marker of an earlier coordinator epoch ends the transaction that is open now",
    (
        Edit(
            ADMISSION,
            "    if marker.coordinator_epoch < state.coordinator_epoch:  # E17\n",
            "    if False:\n",
        ),
    ),
)
LSO_OFF_BY_ONE = Bug(
    "LSO off by one",
    "E10",
    "the last stable offset lies one past the first open record",
    (
        Edit(
            TRANSACTIONS,
            "return min(first_offset, high_watermark)",
            "return min(Offset(first_offset + 1), high_watermark)",
        ),
    ),
)
LSO_IS_HW = Bug(
    "LSO = HW",
    "E10",
    "readers of committed data see all that is replicated",
    (
        Edit(
            LOG,
            "        stable = self._state.transactions.last_stable_offset(self.high_watermark)\n",
            "        stable = self.high_watermark\n",
        ),
    ),
)
ABORTED_ONE_SHORT = Bug(
    "aborted list one short",
    "E10",
    "the last aborted transaction of a fetch is not named",
    (
        Edit(
            TRANSACTIONS,
            "                break\n        return found\n",
            "                break\n        return found[:-1]\n",
        ),
    ),
)
ABORTED_UNLISTED = Bug(
    "aborted transactions not noted",
    "E10",
    "an abort is noted like a commit",
    (Edit(TRANSACTIONS, "        if not commit:\n", "        if False:\n"),),
)
VERIFICATION_SKIPPED = Bug(
    "verification skipped",
    "E14, V5",
    "a transaction begins on a partition whatever the coordinator says of it",
    (
        Edit(
            ADMISSION,
            "if attributes & TRANSACTIONAL and not (is_open",
            "if False and not (is_open",
        ),
        Edit(
            "broker/handlers/produce.py",
            "    if error is ErrorCode.NONE:\n",
            "    if True:\n",
        ),
    ),
    ("versioned", "queue"),
)
GUARD_OUTLIVES_MARKER = Bug(
    "guard outlives a marker",
    "E14",
    "what the coordinator said before a marker counts after it",
    (Edit(LOG, "            self._guards.invalidate(marker)\n", ""),),
    ("versioned", "queue"),
)

LOG_BUGS = (
    NO_DEDUPE,
    WINDOW_OF_4,
    WRONG_WRAP,
    DUPLICATE_ELSEWHERE,
    EPOCH_NOT_ADOPTED,
    MARKER_ADOPTS_NOTHING,
    DEAD_COORDINATOR,
    LSO_OFF_BY_ONE,
    LSO_IS_HW,
    ABORTED_ONE_SHORT,
    ABORTED_UNLISTED,
    VERIFICATION_SKIPPED,
    GUARD_OUTLIVES_MARKER,
)
