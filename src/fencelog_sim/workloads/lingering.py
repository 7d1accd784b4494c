"""Transactions that stay open until the broker ends them, under ids of no other client (E12).

What a workload's own clients leave open is ended by their successors, or when the log is settled:
that would hide a broker that forgets to. Some of these are deserted, and others go on at about the
moment when their time is over: on another partition, so that half a transaction would show.
"""

import asyncio

from fencelog.client.cluster import Cluster
from fencelog.client.sender import ProducerOptions, open_sender
from fencelog_sim.workload import Stage
from fencelog_sim.workloads.own import ERRORS, OwnWriter
from fencelog_sim.workloads.plans import Send, completed, invoked, named, unknown

TIMEOUT_MS = (300, 1500)
DESERT_SHARE = 0.4
RACE_S = 0.03
"""Half of the commits come in the last moments of their time: in about what markers take."""


async def linger(stage: Stage, cluster: Cluster, transactional_id: str, sends: list[Send]) -> None:
    """Write the first send in a transaction with a short timeout; go on with the others, or not.

    Raises nothing that a fault explains.
    """
    timeout_ms = stage.random.randint(*TIMEOUT_MS)
    options = ProducerOptions(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
    try:
        writer = OwnWriter(await open_sender(cluster, options), stage)
    except ERRORS:
        return
    try:
        await _linger(stage, writer, sends, timeout_ms / 1000)
    finally:
        await writer.close()


async def _linger(stage: Stage, writer: OwnWriter, sends: list[Send], timeout_s: float) -> None:
    invocation = stage.history.invoke(invoked(sends), transactional=True)
    deserts = stage.random.random() < DESERT_SHARE
    try:
        await writer.begin()
        begun = stage.now()
        await writer.send(sends[0].partition, sends[0].values)
        offsets = await writer.flush()
        if not deserts:
            await asyncio.sleep(timeout_s * stage.random.uniform(0.6, 1.4))
            for send in sends[1:]:
                await writer.send(send.partition, send.values)
            offsets += await writer.flush()
            if stage.random.random() < 0.5:
                left_s = begun + timeout_s - stage.now()
                await asyncio.sleep(max(0.0, left_s - stage.random.uniform(0.0, RACE_S)))
    except ERRORS as error:
        invocation.failed(unknown(sends), named(error))
        return
    if deserts:
        # No client will ever commit it.
        invocation.failed(unknown(sends), "deserted")
        return
    invocation.committing()
    try:
        await writer.commit()
    except ERRORS as error:
        invocation.indeterminate(unknown(sends), named(error))
        return
    invocation.ok(completed(sends, offsets, []))
