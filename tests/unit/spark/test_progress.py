"""Totals of a run: every batch counted once, whatever Spark reports how often."""

import json

from fencelog.spark.progress import QueryTotals, exported, partitions_read


def report(batch: int, rows: int, *, ran: bool = True, end: int = 0, latest: int = 0) -> dict:
    return {
        "batchId": batch,
        "batchDuration": 1_500,
        "numInputRows": rows,
        "processedRowsPerSecond": 40.0,
        "durationMs": {"addBatch": 9} if ran else {"latestOffset": 1},
        "sources": [
            {"endOffset": {"t": {"0": end}}, "latestOffset": f'{{"t": {{"0": {latest}}}}}'}
        ],
        "sink": {"numOutputRows": rows * 2},
    }


def test_reports_that_were_seen_before_count_once() -> None:
    seen = QueryTotals(name="q").absorb([report(0, 10), report(1, 20)])
    again = seen.absorb([report(0, 10), report(1, 20), report(2, 5)])
    assert (again.batches, again.rows_in, again.rows_out) == (3, 35, 70)


def test_an_idle_report_of_the_next_batch_is_no_batch() -> None:
    totals = QueryTotals(name="q").absorb([report(0, 10), report(1, 0, ran=False), report(1, 7)])
    assert (totals.batches, totals.rows_in, totals.last_batch) == (2, 17, 1)


def test_lag_is_what_the_log_has_beyond_the_last_batch() -> None:
    assert QueryTotals(name="q").absorb([report(0, 1, end=40, latest=100)]).lag == 60


def test_an_unknown_lag_is_not_taken_for_none() -> None:
    foreign = report(0, 1) | {"sources": [{"endOffset": {"offset": 3}, "latestOffset": None}]}
    totals = QueryTotals(name="q").absorb([foreign])
    assert totals.lag is None
    assert "lag unknown" in totals.line()


def test_the_figures_are_those_of_the_last_batch() -> None:
    totals = QueryTotals(name="q").absorb([report(0, 1234) | {"batchDuration": 9}, report(1, 2)])
    assert totals.line() == (
        "q: batch 1, 1,236 rows in, 2,472 out, 40 rows/s, lag 0, 1.5 s per batch"
    )


def test_a_report_without_figures_counts_as_a_batch_of_nothing() -> None:
    bare = {"batchId": 0, "durationMs": {"addBatch": 9}}
    totals = QueryTotals(name="q").absorb([bare, {"batchId": 1}])
    assert totals == QueryTotals(name="q", batches=1, last_batch=0)


def test_lag_is_summed_over_the_sources_that_report_it() -> None:
    foreign = {"endOffset": {"offset": 3}, "latestOffset": None}
    broken = {"endOffset": "{", "latestOffset": "{"}
    ours = {"endOffset": {"t": {"0": 4}}, "latestOffset": {"t": {"0": 9, "1": 7}, "u": {"0": 2}}}
    behind = {"endOffset": {"t": {"0": 9}}, "latestOffset": {"t": {"0": 4}}}
    reported = report(0, 1) | {"sources": [foreign, broken, ours, behind]}
    # A partition that no batch has reached yet is read from its first record.
    assert QueryTotals(name="q").absorb([reported]).lag == 5 + 7 + 2


def test_an_idle_report_tells_the_lag_or_leaves_it() -> None:
    seen = QueryTotals(name="q").absorb([report(0, 1, end=1, latest=5)])
    assert seen.absorb([report(1, 0, ran=False, end=1, latest=9)]).lag == 8
    assert seen.absorb([report(1, 0, ran=False) | {"sources": []}]).lag == 4


def test_a_batch_is_exported_with_topics_servers_and_the_offsets_of_each_partition() -> None:
    source = {
        "description": "org.apache.spark.PythonMicroBatchStream@1",
        "numInputRows": 9,
        "startOffset": {"@ids": {"t": "x"}, "t": {"0": 10}},
        "endOffset": {"@ids": {"t": "x"}, "t": {"0": 20, "1": 5}},
        "latestOffset": {"@servers": "here:9092", "t": {"0": 26, "1": 5}},
    }
    value = exported({**report(4, 9), "name": "q", "sources": [source]})
    assert (value["query"], value["batch"], value["rows_in"], value["rows_out"]) == ("q", 4, 9, 18)
    assert value["sources"] == [
        {
            "source": "topics t at here:9092",
            "rows": 9,
            "behind_min": 0,
            "behind_avg": 3.0,
            "behind_max": 6,
            "partitions": {
                "t-0": {"start": 10, "end": 20, "offsets": 10, "behind": 6},
                "t-1": {"start": -1, "end": 5, "offsets": -1, "behind": 0},
            },
        }
    ]
    assert partitions_read(json.dumps({"sources": [source]})) == [("t", 0), ("t", 1)]


def test_a_source_of_another_kind_is_exported_by_its_description() -> None:
    rates = {"description": "RateStream", "endOffset": 5, "latestOffset": "x"}
    assert exported({"sources": [rates]})["sources"] == [{"source": "RateStream"}]
    unreported = {"endOffset": {"t": {"0": 4}}, "latestOffset": "{"}
    (value,) = exported({"sources": [unreported]})["sources"]
    assert (value["source"], value["behind_min"], value["behind_avg"]) == ("topics t", -1, -1.0)
    assert value["partitions"]["t-0"]["behind"] == -1
