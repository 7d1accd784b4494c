"""Runs a broker of a cluster: on the real disk and clock, with its metadata in etcd."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from fencelog.adapters.file_disk import DirectoryLock, FileDisk
from fencelog.adapters.open_etcd import open_etcd
from fencelog.adapters.system_clock import SystemClock, SystemRandom
from fencelog.broker.config import BrokerConfig
from fencelog.cluster_node import cluster_membership
from fencelog.errors import StorageError
from fencelog.node import Node, Ports

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@asynccontextmanager
async def open_member(config: BrokerConfig) -> AsyncIterator[Node]:
    """Run one life of a broker of a cluster: register on entering, leave on leaving.

    It fails with FencedError when its lease is lost: it has answered nothing since, and another
    life may begin. Always releases the disk, the metadata store and the lock of the directory.
    Raises CorruptionError, StorageError, and FencedError if another broker has its number.
    """
    assert config.cluster is not None
    async with AsyncExitStack() as undo:
        lock = DirectoryLock.acquire(config.data_dir)
        undo.callback(lock.release)
        disk = FileDisk(config.data_dir)
        undo.callback(disk.close)
        metadata = await open_etcd(
            config.cluster,
            ca_file=config.metadata_ca_file,
            cert_file=config.metadata_cert_file,
            key_file=config.metadata_key_file,
            user=config.metadata_user,
            password_file=config.metadata_password_file,
        )
        undo.push_async_callback(metadata.close)
        random = SystemRandom()
        ports = Ports(
            disk=disk,
            metadata=metadata,
            clock=SystemClock(),
            random=random,
            check_directory=lock.check,
        )
        membership = await cluster_membership(
            config, disk, metadata, random, _boot_id(), lock.place
        )
        node = Node(config, ports, new_membership=membership)
        await node.start()
        undo.push_async_callback(node.stop)
        yield node


def _boot_id() -> str:
    """Return which start of the machine this is."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError as error:
        raise StorageError(f"{BOOT_ID}: {error.strerror}") from error
