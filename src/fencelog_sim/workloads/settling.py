"""The last phase of every workload: end what is open, wait until all is stable, read everything.

All faults are healed by then, so what does not succeed within the bound never will.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

from fencelog.check.history import FINAL, Event, key_of
from fencelog.client.admin import Admin
from fencelog.client.cluster import Cluster
from fencelog.client.sender import ProducerOptions, open_sender
from fencelog.client.transaction_admin import TransactionAdmin
from fencelog.types import TopicPartition
from fencelog_sim.workload import Stage
from fencelog_sim.workloads.own import ERRORS, read_once

T = TypeVar("T")

SETTLE_S = 120.0
"""Longer than any transaction's timeout, and than any client's patience."""
RETRY_S = 0.25
OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")


async def insist(
    stage: Stage, what: str, attempt: Callable[[], Awaitable[T]], within_s: float = SETTLE_S
) -> T:
    """Return what the attempt returns, the first time that it does not fail.

    Raises TimeoutError, saying what was wanted and why it failed last.
    """
    ends_at = stage.now() + within_s
    while True:
        try:
            return await attempt()
        except ERRORS as error:
            if stage.now() > ends_at:
                raise TimeoutError(f"{what}: not within {within_s:g} s: {error}") from error
        await asyncio.sleep(RETRY_S)


async def end_transactions(
    stage: Stage, cluster: Cluster, transactional_ids: Sequence[str]
) -> None:
    """Fence the producers of these ids: what is open is aborted, what is decided is completed."""
    for transactional_id in transactional_ids:
        options = ProducerOptions(transactional_id=transactional_id)
        sender = await insist(
            stage,
            f"fencing of {transactional_id}",
            lambda options=options: open_sender(cluster, options),  # type: ignore[misc]
        )
        await sender.close()


async def transactions_end(stage: Stage, cluster: Cluster) -> None:
    """Return once no coordinator lists an open transaction.

    The last stable offset does not show one without records on a partition: the first write after
    its enlistment never came, or was lost. Its marker is appended there all the same.
    """
    admin = TransactionAdmin(cluster)

    async def ended() -> None:
        if found := await admin.listed(OPEN_STATES, (), None):
            names = ", ".join(f"{each.transactional_id} ({each.state})" for each in found)
            raise TimeoutError(f"transactions are open: {names}")

    await insist(stage, "end of all transactions", ended)


async def come_to_rest(
    stage: Stage,
    cluster: Cluster,
    partitions: Sequence[TopicPartition],
    within_s: float = SETTLE_S,
) -> dict[TopicPartition, dict[str, int]]:
    """Return the ends of every partition, once no transaction is open on any.

    Raises TimeoutError naming the partitions where one hangs.
    """
    admin = Admin(cluster)
    found: dict[TopicPartition, dict[str, int]] = {}

    async def ends() -> dict[TopicPartition, dict[str, int]]:
        start = await admin.offsets(partitions, "earliest", "replicated")
        stable = await admin.offsets(partitions, "latest", "transactional")
        high = await admin.offsets(partitions, "latest", "replicated")
        end = await admin.offsets(partitions, "latest", "tail")
        for each in partitions:
            found[each] = {
                "log_start": start[each],
                "last_stable": stable[each],
                "high_watermark": high[each],
                "log_end": end[each],
            }
        hanging = [
            f"{each} at {stable[each]} of {high[each]}"
            for each in partitions
            if stable[each] != high[each]
        ]
        if hanging:
            raise TimeoutError(f"transactions are open on {', '.join(hanging)}")
        return found

    try:
        return await insist(stage, "rest of the log", ends, within_s)
    except TimeoutError:
        if found:
            # The checker of the history needs to know where it hangs.
            stage.history.end({key_of(*each): offsets for each, offsets in found.items()})
        raise


async def read_all(
    stage: Stage, cluster: Cluster, ends: dict[TopicPartition, dict[str, int]]
) -> None:
    """Record every visible record, and then where the partitions end."""
    history = stage.history
    assert history.process.startswith(FINAL), history.process
    history.reset("seek")
    for partition, end in ends.items():
        position = end["log_start"]
        while position < end["last_stable"]:
            invocation = history.invoke([["poll", {}]])
            start = position
            rows, position = await insist(
                stage,
                f"final read of {partition} at offset {start}",
                lambda partition=partition, start=start, end=end: read_once(  # type: ignore[misc]
                    cluster, partition, start, end["last_stable"]
                ),
            )
            key = key_of(*partition)
            seen = [list(row) for row in rows]
            invocation.ok([["poll", {key: seen} if seen else {}]])
    history.end({key_of(*partition): end for partition, end in ends.items()})


def seen_in_the_end(events: list[Event]) -> Iterator[tuple[str, int, str]]:
    """Yield key, offset and value of every record that the final readers saw, once each."""
    seen: dict[tuple[str, int], str] = {}
    for event in events:
        if event["type"] == "ok" and str(event["process"]).startswith(FINAL):
            steps: Any = event["steps"]
            for _, shown in steps:
                for key, rows in shown.items():
                    seen.update(((key, offset), value) for offset, value in rows)
    for (key, offset), value in seen.items():
        yield key, offset, value
