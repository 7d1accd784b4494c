"""The topic id of a partition's directory: ``partition.metadata``."""

from fencelog.errors import CorruptionError
from fencelog.log import layout
from fencelog.ports import Disk
from fencelog.storage.checkpoint import read_file, replace_file
from fencelog.types import TopicId


async def read_topic_id(disk: Disk, directory: str) -> TopicId | None:
    """Return the id of the topic that a partition's directory belongs to, None if it has none.

    Raises CorruptionError.
    """
    path = f"{directory}/{layout.PARTITION_METADATA}"
    content = await read_file(disk, path)
    if content is None:
        return None
    try:
        return layout.decode_partition_metadata(content.decode("ascii", "replace"))
    except CorruptionError as error:
        raise CorruptionError(f"{path}: {error}") from error


async def write_topic_id(disk: Disk, directory: str, topic_id: TopicId) -> None:
    """Store it durably, and with it every name in the directory. Raises StorageError."""
    content = layout.encode_partition_metadata(topic_id).encode("ascii")
    await replace_file(disk, f"{directory}/{layout.PARTITION_METADATA}", content)


async def check_topic_id(disk: Disk, directory: str, topic_id: TopicId) -> None:
    """Raise CorruptionError if another id is stored; store it if a crash left none."""
    stored = await read_topic_id(disk, directory)
    if stored is None:
        await write_topic_id(disk, directory, topic_id)
    elif stored != topic_id:
        raise CorruptionError(
            f"{directory}/{layout.PARTITION_METADATA}: the topic id is "
            f"{layout.topic_id_text(stored)}, not {layout.topic_id_text(topic_id)}"
        )
