"""Versioned transactions under faults: one driver per app, whose versions must each commit once.

The values say app, version and try, so the end of the log shows whether a version was written by
one try alone, and whether versions stand in their order.
"""

from fencelog.check.history import Event
from fencelog.client.cluster import Cluster
from fencelog.client.versioned_transactions import Transactions
from fencelog_sim.workload import Stage
from fencelog_sim.workloads.attempts import query_of
from fencelog_sim.workloads.driver import Driver
from fencelog_sim.workloads.own import open_cluster
from fencelog_sim.workloads.settling import come_to_rest, insist, read_all, seen_in_the_end
from fencelog_sim.workloads.topics import Generations

NAME = "versioned"
PROBLEMS_MAX = 20


class Versioned:
    """The workload; client ``index`` drives app ``versioned-index``."""

    name = NAME
    may_lose = expires = False

    async def prepare(self, stage: Stage) -> None:
        """Create the first topic."""
        cluster = open_cluster(stage)
        try:
            await insist(stage, "first topic", Generations(cluster, NAME, stage.scale).first)
        finally:
            await cluster.close()

    async def client(self, stage: Stage, index: int) -> None:
        """Drive the app until the stage stops, as a new run."""
        cluster, tasks = open_cluster(stage), open_cluster(stage)
        topics = Generations(cluster, NAME, stage.scale)
        try:
            await Driver(stage, cluster, tasks, topics, _app(index)).play()
        finally:
            await tasks.close()
            await cluster.close()

    async def settle(self, stage: Stage) -> None:
        """Abort what is open, as a run of every app that fences all others; read everything."""
        cluster = open_cluster(stage)
        topics = Generations(cluster, NAME, stage.scale)
        try:
            for index in range(stage.scale.clients):
                await _end(stage, cluster, _app(index))
            await insist(stage, "list of topics", topics.find)
            ends = await come_to_rest(stage, cluster, topics.partitions())
            await read_all(stage, cluster, ends)
        finally:
            await cluster.close()

    def check(self, events: list[Event]) -> list[str]:
        """Name versions that two tries wrote, and versions out of order on a partition."""
        tries: dict[tuple[str, int], dict[str, str]] = {}
        newest: dict[tuple[str, str], int] = {}
        problems: list[str] = []
        for key, offset, value in sorted(seen_in_the_end(events)):
            app, version, attempt = _read(value)
            place = f"{key} {offset}"
            tries.setdefault((app, version), {}).setdefault(attempt, place)
            last = newest.setdefault((key, app), version)
            if version < last:
                problems.append(f"version {version} of {app} is at {place}, after version {last}")
            newest[key, app] = max(last, version)
        problems += [
            f"version {version} of {app} is visible from {len(found)} tries: "
            + ", ".join(f"{attempt} at {place}" for attempt, place in found.items())
            for (app, version), found in tries.items()
            if len(found) > 1
        ]
        if len(problems) > PROBLEMS_MAX:
            problems[PROBLEMS_MAX:] = [f"and {len(problems) - PROBLEMS_MAX} more problems"]
        return problems


def _app(index: int) -> str:
    return f"{NAME}-{index}"


def _read(value: str) -> tuple[str, int, str]:
    """Return app, version and try of a value: its process and batch, without writer and number."""
    where, _, who = value.partition("#")
    app, _, version = where.partition("@")
    return app, int(version), who.rsplit(".", 2)[0]


async def _end(stage: Stage, cluster: Cluster, app: str) -> None:
    """Take the app over from its last run, which aborts what that left open."""
    transactions = Transactions(cluster)
    run = f"{stage.history.process} {stage.now()}"

    async def take_over() -> None:
        known = await transactions.describe(app)
        if known.last_version >= 0 or known.open_version >= 0:
            version = max(known.last_version + 1, known.open_version)
            await transactions.abort(app, query_of(app), run, version)

    await insist(stage, f"end of {app}", take_over)


def versioned() -> Versioned:
    """The workload on fencelog's own client, which alone knows versioned transactions."""
    return Versioned()
