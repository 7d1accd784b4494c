"""The streaming source: a repeated batch reads the same offsets again (S2, S6).

Spark keeps the ranges' ends in its checkpoint. The driver-side instance lives as long as the query
run; ``read`` works on pickled copies in tasks.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from fencelog.adapters.system_clock import system_stopwatch
from fencelog.errors import FencelogError
from fencelog.spark.next_batch import ends_now, first_cuts, next_batch
from fencelog.spark.offsets import (
    OffsetRange,
    admit,
    begin_of,
    from_json,
    is_unpinned,
    newest_segments,
    ranges,
    recreated,
    split,
    streams_in,
    to_json,
    topic_ids,
    without,
)
from fencelog.spark.options import OptionError, SourceOptions
from fencelog.spark.plain_errors import plain_errors
from fencelog.spark.planning import Subscribed, connect, data_loss, ends, starts, subscribed
from fencelog.spark.progress import SERVERS
from fencelog.spark.pyspark_api import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from fencelog.spark.reading import RangePartition, read_range
from fencelog.spark.schema import check_read
from fencelog.spark.trigger_delay import TriggerDelay
from fencelog.types import TopicId, TopicPartition

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

    from fencelog.client.blocking import Client


@plain_errors
class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads committed (``transactional``) or ``replicated`` records, batch by batch."""

    def __init__(self, options: SourceOptions, schema: "StructType") -> None:
        """Check the schema without a request to the cluster: this object is pickled to tasks."""
        check_read(schema)
        self._options = options
        self._schema = schema
        self._latest: dict[TopicPartition, int] = {}
        self._available_now: dict[TopicPartition, int] | None = None
        self._delay = TriggerDelay(
            offsets_min=options.offsets_per_trigger_min, delay_max_ms=options.trigger_delay_max_ms
        )
        self._group_offsets: dict[TopicPartition, int] = {}
        self._no_streams: set[TopicId] = set()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """The start offsets of a query without checkpoint.

        Spark asks twice for the first batch, and again after a crash in it. Where the answer moves
        with the cluster (``latest``) it carries a mark: the first batch then reads nothing and only
        writes the start into Spark's log. Without that, records between two answers would be lost.
        """
        options = self._options
        client = connect(options.connection)
        found = self._subscribed(client)
        first = first_cuts(found, starts(client, options.starting, found, options.isolation))
        unpinned = not options.starting.fixed
        return to_json(first, found.topic_ids, streams=found.streams, unpinned=unpinned)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """``maxOffsetsPerTrigger`` or ``minOffsetsPerTrigger``, or no limit.

        Spark hands one limit back, and none of them for the trigger Once.
        """
        options = self._options
        if options.offsets_per_trigger_max is not None:
            return ReadMaxRows(options.offsets_per_trigger_max)
        if options.offsets_per_trigger_min is not None:
            return ReadMinRows(options.offsets_per_trigger_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of this run: the present end of the present partitions."""
        client = connect(self._options.connection)
        self._available_now = ends_now(client, self._subscribed(client), self._options.isolation)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """End of the next batch. ``start`` is finished, so it is committed for the group."""
        begun, ids = from_json(start), topic_ids(start)
        if is_unpinned(start):
            return to_json(begun, ids, streams=streams_in(start))
        self.commit(start)
        options = self._options
        client = connect(options.connection)
        found = self._subscribed(client, start)
        made_anew = recreated(ids, found.topic_ids)
        batch = next_batch(
            client,
            found,
            without(begun, made_anew),
            options.isolation,
            made_anew=made_anew,
            ceiling=self._available_now,
        )
        self._latest = batch.unread
        if options.fail_on_data_loss and batch.lost:
            raise data_loss(batch.lost)
        latest = batch.latest
        if self._available_now is None and not isinstance(limit, ReadAllAvailable):
            available = sum(max(0, end - batch.begins[each]) for each, end in latest.items())
            if self._delay.holds(available, system_stopwatch()):
                return start
        if isinstance(limit, ReadMaxRows):
            latest = admit(batch.begins, latest, limit.max_rows)
        if found.streams and all(end <= batch.begins[each] for each, end in latest.items()):
            # A stream that only split or merged is no reason for a batch.
            return start
        return to_json({**batch.later, **latest}, found.topic_ids, streams=found.streams)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The last known end of the log and where it is, for Spark's progress.

        Spark describes a Python source by a Java object's address, and takes no metrics from it.
        """
        if not self._latest:
            return None
        return {SERVERS: self._options.connection.bootstrap_servers, **to_json(self._latest)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One task for each partition with new offsets, or more with ``minPartitions``."""
        if is_unpinned(start):
            begin = begin_of(end)
            if begin is None:
                return []
            start = begin
        finished, ids = from_json(end), topic_ids(end)
        begun = without(from_json(start), recreated(topic_ids(start), ids))
        client = connect(self._options.connection)
        new = [each for each in finished if each not in begun]
        read_before = {each.topic for each in begun}.intersection(streams_in(end))
        begun |= dict.fromkeys((each for each in new if each.topic in read_before), 0)
        begun |= self._first_offsets(client, [each for each in new if each not in begun])
        wanted: list[OffsetRange] = ranges(begun, finished, ids)
        options = self._options
        pieces = split(wanted, options.partitions_min or 0, options.partition_offsets_max)
        return [RangePartition(each) for each in pieces]

    def read(self, partition: InputPartition) -> Iterator["pyarrow.RecordBatch"]:
        """Yield the partition's records as Arrow; runs in a task."""
        return read_range(partition, self._options, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit progress to the consumer group, so that Kafka tools show the lag (S6).

        Spark's checkpoint decides what is read, so a failure here must not fail the query.
        """
        offsets = from_json(end)
        group = self._options.group_id
        if group is None or is_unpinned(end) or offsets == self._group_offsets:
            return
        try:
            connect(self._options.connection).commit_offsets(group, offsets)
            self._group_offsets = offsets
        except (FencelogError, OSError) as error:
            print(f"fencelog: progress of group '{group}' not committed: {error}")  # noqa: T201  (Spark logs what a driver-side worker prints)

    def _subscribed(self, client: "Client", start: Mapping[str, Any] | None = None) -> Subscribed:
        """What there is to read. Raises OptionError for a stream of which parts are assigned.

        ``start``: positions of a checkpoint, of which brokers that are behind may not know yet.
        """
        subscription = self._options.subscription
        found = subscribed(
            client, subscription, known=newest_segments(start or {}), no_streams=self._no_streams
        )
        if found.streams and subscription.partitions:
            raise OptionError(
                f"option 'assign' names segments of '{min(found.streams)}', which is a stream: its"
                " segments are replaced by others as it splits and merges; use 'subscribe'"
            )
        ids = found.topic_ids.items()
        self._no_streams.update(topic_id for name, topic_id in ids if name not in found.streams)
        return found

    def _first_offsets(
        self, client: "Client", partitions: list[TopicPartition]
    ) -> dict[TopicPartition, int]:
        return ends(client, partitions, "earliest", self._options.isolation)
