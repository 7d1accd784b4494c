"""Exports the progress of streaming queries: one plain value for each finished batch.

Spark's own report of a Python source has a Java object's address for its description and no
metrics. This one names topics and servers, and has the offsets of each partition.
"""

import json
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark.sql.streaming.listener import StreamingQueryListener

from fencelog.spark.progress import exported

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

log = logging.getLogger(__name__)

Export: TypeAlias = Callable[[Mapping[str, Any]], None]


class ProgressListener(StreamingQueryListener):
    """Calls ``export`` with a value of plain types after each batch, and when a query ends.

    Without ``export`` each is logged as a line of JSON, at level INFO under
    ``fencelog.spark.progress_listener``. Spark calls it in one thread, and drops what it raises.
    """

    def __init__(self, export: Export | None = None) -> None:
        """Add it to a session by ``spark.streams.addListener``."""
        self._export = export or _log

    def onQueryStarted(self, event: "QueryStartedEvent") -> None:  # noqa: N802
        """Nothing: the first batch tells more."""

    def onQueryProgress(self, event: "QueryProgressEvent") -> None:  # noqa: N802
        """Export a batch."""
        self._export(exported(json.loads(event.progress.json)))

    def onQueryIdle(self, event: "QueryIdleEvent") -> None:  # noqa: N802
        """Nothing: there was no batch."""

    def onQueryTerminated(self, event: "QueryTerminatedEvent") -> None:  # noqa: N802
        """Export that a query has ended, and with what error."""
        self._export(
            {
                "event": "ended",
                "query_id": str(event.id),
                "run_id": str(event.runId),
                "error": event.exception,
            }
        )


def _log(value: Mapping[str, Any]) -> None:
    log.info("%s", json.dumps(value))
