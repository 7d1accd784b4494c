"""The streaming source on PySpark 4.0 and 4.1, where ``latestOffset`` has no arguments.

Spark asks for the end of the first batch before it asks for its start, and limits no batch: each
goes to the end of the log, as does the one batch of the trigger AvailableNow.
"""

from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from fencelog.spark.offsets import (
    begin_of,
    from_json,
    is_unpinned,
    recreated,
    to_json,
    topic_ids,
    with_begin,
)
from fencelog.spark.options import OptionError, SourceOptions
from fencelog.spark.plain_errors import plain_errors
from fencelog.spark.planning import connect, data_loss, ends, lost, starts
from fencelog.spark.stream_reader import StreamReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@plain_errors
class UnlimitedStreamReader(StreamReader):
    """Reads like its base. What needs a batch's start is done when its partitions are planned."""

    def __init__(self, options: SourceOptions, schema: "StructType") -> None:
        """Raise OptionError for a limit, which would silently not hold."""
        super().__init__(options, schema)
        limits = {
            "maxOffsetsPerTrigger": options.offsets_per_trigger_max,
            "minOffsetsPerTrigger": options.offsets_per_trigger_min,
        }
        for name, limit in limits.items():
            if limit is not None:
                raise OptionError(
                    f"option '{name}' needs PySpark 4.2 or newer, and this is {version('pyspark')}:"
                    " without the option a batch reads all records that there are"
                )
        self._planned: dict[str, Any] | None = None

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        """End of the log. The newest batch is finished, so it is committed for the group.

        Where another look at the cluster might place a new query's start elsewhere, the end
        carries the start, and so both are in Spark's log before the first batch runs.
        """
        if self._planned is not None:
            self.commit(self._planned)
        options = self._options
        client = connect(options.connection)
        found = self._subscribed(client)
        if found.streams:
            raise OptionError(
                f"'{min(found.streams)}' is a stream: to read one as it splits and merges needs"
                f" PySpark 4.2 or newer, and this is {version('pyspark')}"
            )
        start: dict[str, Any] | None = None
        # Spark tells a query with a checkpoint its place first, but for the trigger AvailableNow:
        # there the start is in Spark's log, and what the end carries is not looked at.
        if self._planned is None and not options.starting.fixed:
            first = starts(client, options.starting, found, options.isolation)
            start = to_json(first, found.topic_ids)
        latest = ends(client, found.partitions, "latest", options.isolation)
        end = to_json(latest, found.topic_ids)
        return end if start is None else with_begin(end, start)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """As in the base, after a look for records that are lost.

        Spark calls this with the newest end twice where a query continues, and before each batch.
        """
        self._planned = end
        if start == end:
            return []
        self.commit(start)
        begun = begin_of(end) or {} if is_unpinned(start) else start
        if self._options.fail_on_data_loss:
            self._check_lost(begun, end)
        return super().partitions(start, end)

    def _check_lost(self, start: dict[str, Any], end: dict[str, Any]) -> None:
        client = connect(self._options.connection)
        finished = from_json(end)
        earliest = ends(client, list(finished), "earliest", self._options.isolation)
        made_anew = recreated(topic_ids(start), topic_ids(end))
        if sentences := lost(from_json(start), earliest, finished, made_anew):
            raise data_loss(sentences)
