"""Totals of a running query, summed from Spark's progress reports. Plain values."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from fencelog.types import TopicPartition

SERVERS: Final = "@servers"
"""Beside the latest offsets that a source reports; no topic can have this name."""


@dataclass(frozen=True, kw_only=True)
class QueryTotals:
    """One query's totals and newest figures; each report makes a new value.

    Attributes:
        batches: finished batches of this run.
        rows_in: rows read by this run.
        rows_out: rows written by this run.
        last_batch: the newest finished batch, -1 before the first.
        batch_s: how long that one took.
        rows_per_s: how fast it was processed.
        lag: records that the sources have and the query has not read; None where unknown.
    """

    name: str
    batches: int = 0
    rows_in: int = 0
    rows_out: int = 0
    last_batch: int = -1
    batch_s: float = 0.0
    rows_per_s: float = 0.0
    lag: int | None = None

    def absorb(self, reports: Iterable[Mapping[str, Any]]) -> "QueryTotals":
        """The totals with these reports; a report that is counted already changes nothing."""
        totals = self
        for report in reports:
            totals = totals._with(report)
        return totals

    def _with(self, report: Mapping[str, Any]) -> "QueryTotals":
        batch = int(report["batchId"])
        lag = _lag(report.get("sources", ()))
        # An idle query reports its next batch repeatedly, without rows and without running it.
        if batch <= self.last_batch or "addBatch" not in report.get("durationMs", {}):
            return replace(self, lag=lag if lag is not None else self.lag)
        return replace(
            self,
            batches=self.batches + 1,
            rows_in=self.rows_in + int(report.get("numInputRows", 0)),
            rows_out=self.rows_out + max(0, int(report.get("sink", {}).get("numOutputRows", 0))),
            last_batch=batch,
            batch_s=int(report.get("batchDuration", 0)) / 1000,
            rows_per_s=float(report.get("processedRowsPerSecond", 0.0)),
            lag=lag,
        )

    def line(self) -> str:
        """One line for a log."""
        lag = "unknown" if self.lag is None else f"{self.lag:,}"
        return (
            f"{self.name}: batch {self.last_batch}, {self.rows_in:,} rows in,"
            f" {self.rows_out:,} out, {self.rows_per_s:,.0f} rows/s, lag {lag},"
            f" {self.batch_s:.1f} s per batch"
        )


def exported(report: Mapping[str, Any]) -> dict[str, Any]:
    """A progress report of Spark as plain values, with the offsets of each partition.

    ``rows`` are what Spark counted; an offset may be a marker's or a gap, so a partition's
    ``offsets`` may be more. ``behind``: offsets that the batch left unread, -1 if not known.
    """
    return {
        "event": "batch",
        "query": report.get("name"),
        "query_id": report.get("id"),
        "run_id": report.get("runId"),
        "batch": report.get("batchId"),
        "time": report.get("timestamp"),
        "rows_in": int(report.get("numInputRows", 0)),
        "rows_out": max(0, int(report.get("sink", {}).get("numOutputRows", 0))),
        "rows_per_s": float(report.get("processedRowsPerSecond", 0.0)),
        "duration_ms": dict(report.get("durationMs", {})),
        "sources": [_source(each) for each in report.get("sources", ())],
    }


def partitions_read(report: str) -> list[TopicPartition]:
    """The partitions that the sources of a progress report have read; sorted."""
    sources = json.loads(report).get("sources", ())
    found = [_offsets(each.get("endOffset")) or {} for each in sources]
    return sorted({TopicPartition(name, int(at)) for each in found for name, at in each})


def _source(source: Mapping[str, Any]) -> dict[str, Any]:
    """One source; one that is not ours has its description only."""
    end = _offsets(source.get("endOffset"))
    if not end:
        return {"source": source.get("description")}
    start = _offsets(source.get("startOffset")) or {}
    latest = _offsets(source.get("latestOffset")) or {}
    # Of a stream there may be segments that the batch could not begin yet.
    behind = [max(0, offset - end.get(place, 0)) for place, offset in latest.items()]
    topics = sorted({topic for topic, _ in end})
    servers = _servers(source.get("latestOffset"))
    return {
        "source": f"topics {', '.join(topics)}" + (f" at {servers}" if servers else ""),
        "rows": int(source.get("numInputRows", 0)),
        "behind_min": min(behind, default=-1),
        "behind_avg": sum(behind) / len(behind) if behind else -1.0,
        "behind_max": max(behind, default=-1),
        "partitions": {
            f"{topic}-{partition}": {
                "start": start.get((topic, partition), -1),
                "end": offset,
                "offsets": offset - start[topic, partition] if (topic, partition) in start else -1,
                "behind": max(0, latest[topic, partition] - offset)
                if (topic, partition) in latest
                else -1,
            }
            for (topic, partition), offset in sorted(end.items())
        },
    }


def _servers(latest: object) -> str | None:
    """What the source says of its servers beside its latest offsets."""
    if isinstance(latest, str):
        try:
            latest = json.loads(latest)
        except json.JSONDecodeError:
            return None
    found = latest.get(SERVERS) if isinstance(latest, dict) else None
    return str(found) if found else None


def _lag(sources: Iterable[Mapping[str, Any]]) -> int | None:
    """Offsets not read yet, over all sources that report them."""
    total, known = 0, False
    for source in sources:
        latest, end = _offsets(source.get("latestOffset")), _offsets(source.get("endOffset"))
        if latest is None or end is None:
            continue
        known = True
        total += sum(max(0, offset - end.get(place, 0)) for place, offset in latest.items())
    return total if known else None


def _offsets(value: object) -> dict[tuple[str, str], int] | None:
    """Offsets in the connector's shape, ``{"topic": {"0": 23}}``, as text or parsed."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            return None
    if not isinstance(value, dict):
        return None
    return {
        (topic, partition): int(offset)
        for topic, by_partition in value.items()
        if isinstance(by_partition, dict) and not topic.startswith("@")
        for partition, offset in by_partition.items()
    }
