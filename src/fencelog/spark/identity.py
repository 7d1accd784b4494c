"""Who writes which batch."""

from dataclasses import dataclass
from typing import Final

NO_STREAM: Final = "batch"
"""The query id of a numbered write outside a streaming query. Each is a run of its own."""


@dataclass(frozen=True, kw_only=True)
class BatchIdentity:
    """The transaction of a write: the app's batch ``version``, written by this run."""

    app: str
    query_id: str
    """Empty for a batch write without a number: its app is named for this one write (V4)."""
    run_id: str
    version: int
    host: str = ""
    """Where the driver is; empty where it is not known."""
    allow_gaps: bool = False
