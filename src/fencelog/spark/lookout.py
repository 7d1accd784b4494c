"""Asks Spark and the broker what running queries wait for; ``waiting`` puts it into words."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fencelog.adapters.system_clock import system_stopwatch
from fencelog.errors import ErrorCode, FencelogError, RequestError
from fencelog.spark.options import BOOTSTRAP_VARIABLE
from fencelog.spark.progress import partitions_read
from fencelog.spark.waiting import Situation, waits_for
from fencelog.types import TopicPartition
from fencelog.wire.own import app_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from fencelog.client.blocking import Client
    from fencelog.client.model import OpenBatch

LOOK_S: Final = 2.0
"""How long an answer counts: the screen is drawn more often."""
ASK_S: Final = 1.0
"""How long the broker may take; without its answer the screen has Spark's words only."""


class Lookout:
    """What each query of a session waits for."""

    def __init__(self, spark: "SparkSession") -> None:
        """Use the servers of the environment, as sources and sinks do by default."""
        self._spark = spark
        self._answers: dict[str, tuple[float, str]] = {}

    def waits_for(self, query: "StreamingQuery") -> str:
        """A few words, at most LOOK_S old; empty for a query that has ended."""
        now_s, run_id = system_stopwatch(), str(query.runId)
        asked_s, answer = self._answers.get(run_id, (-LOOK_S, ""))
        if now_s - asked_s >= LOOK_S:
            answer = waits_for(self._situation(query)) if query.isActive else ""
            self._answers[run_id] = (system_stopwatch(), answer)
        return answer

    def _situation(self, query: "StreamingQuery") -> Situation:
        here = Situation(message=str(query.status["message"]), tasks=self._tasks(str(query.runId)))
        servers = os.environ.get(BOOTSTRAP_VARIABLE)
        if servers is None:
            return here
        from fencelog.client.blocking import Client

        client = Client.shared(servers, request_timeout_s=ASK_S, api_timeout_s=ASK_S)
        try:
            if here.is_idle:
                report = query.lastProgress
                places = [] if report is None else partitions_read(report.json)
                return replace(here, holders=holders(client, places))
            batch = _open_batch(client, str(query.id))
            return replace(here, batch=batch)
        except (FencelogError, OSError):
            return here

    def _tasks(self, run_id: str) -> tuple[int, int] | None:
        """Finished and all tasks of the run's active jobs; Spark's job group is the run."""
        tracker = self._spark.sparkContext.statusTracker()
        active = {*tracker.getActiveJobsIds()} & {*tracker.getJobIdsForGroup(run_id)}
        jobs = [job for each in active if (job := tracker.getJobInfo(each)) is not None]
        stages = [tracker.getStageInfo(each) for job in jobs for each in job.stageIds]
        known = [each for each in stages if each is not None]
        if not known:
            return None
        return sum(each.numCompletedTasks for each in known), sum(each.numTasks for each in known)


def holders(client: "Client", places: Sequence[TopicPartition]) -> dict[str, str]:
    """Whose open transaction holds back each partition that has records beyond it."""
    if not places:
        return {}
    stable = client.offsets(places, "latest", "transactional")
    end = client.offsets(places, "latest", "replicated")
    held = [each for each in places if stable[each] < end[each]]
    first = {
        place: producer.producer_id
        for place, found in (client.describe_producers(held) if held else {}).items()
        for producer in found
        if producer.start_offset == stable[place]
    }
    if not first:
        return {}
    listed = client.list_transactions(producer_ids=sorted(set(first.values())))
    names = {each.producer_id: _name(each.transactional_id) for each in listed}
    return {
        str(place): names.get(producer_id, f"producer {producer_id}")
        for place, producer_id in sorted(first.items())
    }


def _name(transactional_id: str) -> str:
    app = app_of(transactional_id)
    return transactional_id if app is None else f"app {app}"


def _open_batch(client: "Client", app: str) -> "OpenBatch | None":
    """The query's transaction under its default app; None too where its app has another name."""
    try:
        return client.open_batch(app)
    except RequestError as error:
        if error.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return None
        raise
