"""Several brokers in one process, over one SQLite store: a cluster to try, without etcd."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from fencelog.adapters.file_disk import DirectoryLock, FileDisk
from fencelog.adapters.sqlite_metadata import METADATA_FILE, SqliteMetadata
from fencelog.adapters.system_clock import SystemClock, SystemRandom
from fencelog.broker.config import BrokerConfig
from fencelog.cli.lives import Ready, serve_member
from fencelog.cluster_node import cluster_membership
from fencelog.errors import FencelogError
from fencelog.node import Node, Ports
from fencelog.ports import MetadataStore

BOOT_ID = "this process"
"""The directory is deleted when the process ends: no broker outlives a start of the machine."""
INTERNAL_REPLICAS_MAX = 3


async def serve_brokers(
    config: BrokerConfig,
    brokers: int,
    stop: asyncio.Event,
    ready: Ready,
    all_ready: Callable[[Sequence[str]], None],
) -> BaseException | None:
    """Run this many brokers until they are to stop; return the first failure, if any.

    ``all_ready`` is told the addresses of all, once each listens. Topics have a replica on each
    broker, internal ones on three at most. Raises StorageError, and what a first start raises.
    """
    addresses: dict[int, str] = {}
    failures: list[BaseException] = []
    refused: list[Exception] = []

    def listening(node: Node) -> None:
        is_new = node.config.node_id not in addresses
        host, port = node.address
        addresses[node.config.node_id] = f"{host}:{port}"
        ready(node)
        if is_new and len(addresses) == brokers:
            all_ready([addresses[each] for each in sorted(addresses)])

    async def serve(number: int) -> None:
        of_broker = replace(
            config,
            data_dir=str(Path(config.data_dir) / f"broker-{number}"),
            node_id=number,
            port=config.port + number - 1 if config.port else 0,
            replication_factor=brokers,
            internal_replication_factor=min(brokers, INTERNAL_REPLICAS_MAX),
        )
        opened = partial(_member, metadata)
        try:
            failure = await serve_member(of_broker, stop, listening, opened)
        except (FencelogError, OSError) as error:
            refused.append(error)
        else:
            if failure is not None:
                failures.append(failure)
        stop.set()

    metadata = await SqliteMetadata.open(Path(config.data_dir) / METADATA_FILE, sync=False)
    try:
        async with asyncio.TaskGroup() as serving:
            for number in range(1, brokers + 1):
                serving.create_task(serve(number))
    finally:
        await metadata.close()
    if refused:
        raise refused[0]
    return failures[0] if failures else None


@asynccontextmanager
async def _member(metadata: MetadataStore, config: BrokerConfig) -> AsyncIterator[Node]:
    """Run one life of a broker over a store that the others share."""
    async with AsyncExitStack() as undo:
        lock = DirectoryLock.acquire(config.data_dir)
        undo.callback(lock.release)
        disk = FileDisk(config.data_dir)
        undo.callback(disk.close)
        random = SystemRandom()
        ports = Ports(
            disk=disk,
            metadata=metadata,
            clock=SystemClock(),
            random=random,
            check_directory=lock.check,
        )
        membership = await cluster_membership(config, disk, metadata, random, BOOT_ID)
        node = Node(config, ports, new_membership=membership)
        await node.start()
        undo.push_async_callback(node.stop)
        yield node
