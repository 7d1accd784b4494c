"""The spelling of resources."""

import re

from fencelog.types import TopicPartition

_PARTITION = re.compile(r"([A-Za-z0-9._-]{1,249})/(0|[1-9][0-9]{0,8})")


def partition_of(resource: str) -> TopicPartition | None:
    """Return the partition that a resource names (``topic/partition``); None for any other one."""
    found = _PARTITION.fullmatch(resource)
    return None if found is None else TopicPartition(found[1], int(found[2]))
