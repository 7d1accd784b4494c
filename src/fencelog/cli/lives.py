"""How long a broker serves: a broker alone for one life, one of a cluster life after life."""

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from fencelog.broker.config import BrokerConfig
from fencelog.errors import FencedError, StorageError

if TYPE_CHECKING:
    from fencelog.node import Node

log = logging.getLogger(__name__)

PAUSE_S = 1.0
"""Between two attempts to begin another life."""
Ready = Callable[["Node"], None]
"""Is told of a node that listens."""
OpenMember = Callable[[BrokerConfig], "AbstractAsyncContextManager[Node]"]
"""Runs one life of a broker of a cluster."""


async def serve_alone(
    config: BrokerConfig, stop: asyncio.Event, ready: Ready
) -> BaseException | None:
    """Run a broker until it is to stop; return the failure that has ended it before, if any."""
    from fencelog.node import open_node

    async with open_node(config) as node:
        ready(node)
        return await _until_ended(node, stop)


async def serve_in_etcd(
    config: BrokerConfig, stop: asyncio.Event, ready: Ready
) -> BaseException | None:
    """Run a broker of a cluster whose metadata is in etcd, as ``serve_member`` does."""
    from fencelog.cli.cluster_process import open_member

    return await serve_member(config, stop, ready, open_member)


async def serve_member(
    config: BrokerConfig, stop: asyncio.Event, ready: Ready, open_member: OpenMember
) -> BaseException | None:
    """Run a broker of a cluster, life after life: the next one begins where a lease was lost.

    Its address stays. A failure of the first start is raised, of a later one tried again.
    """
    is_first = True
    while not stop.is_set():
        try:
            async with open_member(config) as node:
                config, is_first = replace(config, port=node.address[1]), False
                ready(node)
                failure = await _until_ended(node, stop)
        except StorageError as error:
            if is_first:
                raise
            log.warning("the next attempt to take part follows in %g s: %s", PAUSE_S, error)
            with suppress(TimeoutError):
                async with asyncio.timeout(PAUSE_S):
                    await stop.wait()
            continue
        if not isinstance(failure, FencedError):
            return failure
        log.warning("%s; it takes part again", failure)
    return None


async def _until_ended(node: "Node", stop: asyncio.Event) -> BaseException | None:
    """Return when the node is to stop, or has failed: then why."""
    from fencelog.adapters.file_disk import DirectoryReplacedError

    loop = asyncio.get_running_loop()
    stopped = loop.create_task(stop.wait())
    failed = loop.create_task(node.wait_failed())
    await asyncio.wait({stopped, failed}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    failed.cancel()
    failure = node.failure()
    if isinstance(failure, DirectoryReplacedError):
        log.error("the broker stops at once: %s", failure)
        # A clean stop would write to a directory that another broker may use.
        logging.shutdown()
        os._exit(1)
    return failure
