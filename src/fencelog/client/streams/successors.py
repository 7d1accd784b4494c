"""The segments that come after one that a group has read to its end (R8)."""

from fencelog.client.cluster import Cluster
from fencelog.client.streams.admin import StreamAdmin
from fencelog.client.streams.group_model import StreamMadeAgainError
from fencelog.coordination.reader_group.state import Settings
from fencelog.errors import ErrorCode
from fencelog.rpc.failures import failure


async def successors(
    cluster: Cluster, settings: Settings, index: int
) -> dict[int, tuple[int, ...]]:
    """Return the successors that the group reads, each with all of its predecessors.

    Raises StreamMadeAgainError, RequestError.
    """
    if settings.end is not None and index in settings.end:
        return {}
    found = await StreamAdmin(cluster).describe_stream(settings.stream)
    if found.topic_id.hex() != settings.topic_id:
        raise StreamMadeAgainError(settings.stream)
    after = {each.index: each.predecessors for each in found.stream.successors(index)}
    if not after:
        # A broker that has not heard of the resize has answered.
        what = f"successors of segment {index} of {settings.stream}"
        raise failure(ErrorCode.RESIZE_IN_PROGRESS, what)
    return after
