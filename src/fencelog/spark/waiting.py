"""What a running query waits for, in a few words, for the runner's screen. Plain values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fencelog.client.model import OpenBatch

PLANNING: Final = ("Initializing", "Getting offsets")
IDLE: Final = ("Waiting for data", "Waiting for next trigger")
DECIDED: Final = {"PrepareCommit": "markers", "PrepareAbort": "markers of an abort"}


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What Spark and the broker say of a query.

    Attributes:
        message: Spark's word for what the query does (``StreamingQuery.status``).
        tasks: finished and all tasks of the jobs that run for it; None without a job.
        batch: its open or ending transaction; None if there is none or it is not known.
        holders: who has open transactions on partitions that it reads, by partition.
    """

    message: str
    tasks: tuple[int, int] | None = None
    batch: OpenBatch | None = None
    holders: Mapping[str, str] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether the query has nothing to do, as far as Spark knows."""
        return self.message.startswith(IDLE)


def waits_for(situation: Situation) -> str:
    """What the query waits for: planning, tasks, its commit, markers, records, or somebody."""
    batch = situation.batch
    if situation.is_idle:
        return _held(situation.holders or {}) or "new records"
    if situation.message.startswith(PLANNING):
        return "planning"
    if batch is not None and batch.state in DECIDED:
        return DECIDED[batch.state]
    written = f", {batch.rows:,} rows written" if batch is not None and batch.rows > 0 else ""
    if situation.tasks is not None:
        done, total = situation.tasks
        return f"tasks, {done} of {total} done{written}"
    # No task runs: they have ended, or none has begun. Without an open batch that is not known.
    return "planning or commit" if batch is None else f"commit{written}"


def _held(holders: Mapping[str, str]) -> str:
    """Whose open transaction holds back records that are written already."""
    if not holders:
        return ""
    place, who = next(iter(holders.items()))
    more = f" and {len(holders) - 1} more" if len(holders) > 1 else ""
    return f"open transaction of {who} on {place}{more}"
