"""Every planted bug, and the fences that are taken away one by one.

The product has no switches: a bug exists in a copy of the source only.
"""

from dataclasses import dataclass

from tests.simulation._bug import Bug, Edit
from tests.simulation._planted_cleaning import CLEANING_BUGS
from tests.simulation._planted_coordinators import COORDINATOR_BUGS, EPOCH_NOT_CHECKED
from tests.simulation._planted_groups import (
    GENERATION_NOT_CHECKED,
    GROUP_BUGS,
    MEMBERSHIP_NOT_CHECKED,
)
from tests.simulation._planted_log import (
    LOG_BUGS,
    LSO_IS_HW,
    MARKER_ADOPTS_NOTHING,
    VERIFICATION_SKIPPED,
)
from tests.simulation._planted_storage import STORAGE_BUGS
from tests.simulation._planted_version_2 import VERSION_2_BUGS

PLANTED: tuple[Bug, ...] = (
    *STORAGE_BUGS,
    *LOG_BUGS,
    *COORDINATOR_BUGS,
    *GROUP_BUGS,
    *CLEANING_BUGS,
    *VERSION_2_BUGS,
)


@dataclass(frozen=True)
class Ablation:
    """A fence taken away, or two that catch the same."""

    fence: str
    bug: Bug
    is_seen: bool
    """Whether the checker then shows a violation; if not, ``why`` names the fence that holds."""
    why: str


_NO_SEQUENCES = Bug(
    "sequence check",
    "E3, E4",
    "any sequence is appended",
    (
        Edit(
            "log/producers.py",
            "    if expected in (first_sequence, UNKNOWN_SEQUENCE):\n",
            "    if True:\n",
        ),
    ),
    ("queue", "bank"),
)
_NO_EPOCH_AT_THE_PARTITION = Bug(
    "epoch check of the partition",
    "E2",
    "the partition takes an older epoch",
    (
        Edit(
            "log/producers.py",
            "    if epoch < state.epoch:\n        return ErrorCode.INVALID_PRODUCER_EPOCH  # E2\n",
            "",
        ),
    ),
)
_NO_EPOCH_AT_THE_COORDINATOR = Bug(
    "epoch check of the coordinator",
    "E2",
    "the coordinator takes an older epoch",
    (
        Edit(
            "coordination/transaction/ending.py",
            "    if current.successor.producer_epoch != asked.producer_epoch:\n",
            "    if False:\n",
        ),
    ),
)

ABLATIONS: tuple[Ablation, ...] = (
    Ablation(
        "sequence",
        _NO_SEQUENCES,
        is_seen=True,
        why="nothing else tells a repeated batch from a new one",
    ),
    Ablation(
        "producer epoch",
        _NO_EPOCH_AT_THE_PARTITION,
        is_seen=False,
        why="the first write of a transaction is verified, and the coordinator refuses the older"
        " epoch; inside an open transaction another epoch is refused whichever is older",
    ),
    Ablation(
        "producer epoch",
        _NO_EPOCH_AT_THE_COORDINATOR,
        is_seen=True,
        why="EndTxn goes to the coordinator alone, so nothing behind it can refuse it",
    ),
    Ablation(
        "producer epoch",
        EPOCH_NOT_CHECKED,
        is_seen=True,
        why="with both gone a fenced producer writes into its successor's transaction",
    ),
    Ablation(
        "generation",
        GENERATION_NOT_CHECKED,
        is_seen=True,
        why="a member that missed a rebalance has a live session, a producer of its own and the"
        " right epoch; only the number of the generation says that its partitions are another's",
    ),
    Ablation(
        "generation",
        MEMBERSHIP_NOT_CHECKED,
        is_seen=True,
        why="who is no member any more is let in by nothing else either",
    ),
    Ablation(
        "verification",
        VERIFICATION_SKIPPED,
        is_seen=True,
        why="a versioned producer has no epoch that outlives its transaction: its marker drops its"
        " state, so only the coordinator knows that it is over",
    ),
    Ablation(
        "verification",
        MARKER_ADOPTS_NOTHING,
        is_seen=True,
        why="a producer with a transactional id is stopped by the fencing marker's epoch as well;"
        " with both gone its late write opens a transaction that nobody will end",
    ),
    Ablation(
        "LSO filter",
        LSO_IS_HW,
        is_seen=True,
        why="the aborted list can name only what is decided; an open transaction is in none",
    ),
)
