"""The cluster's identity: made by the first broker, and the same for all that follow."""

import json
from typing import NamedTuple

from fencelog.broker.metadata.known_commits import commit_known
from fencelog.errors import CorruptionError, FencedError
from fencelog.log.layout import topic_id_text
from fencelog.ports import MetadataStore, MetadataWrite, Random
from fencelog.types import TopicId

CLUSTER_KEY = "cluster"
SECRET_BYTES = 32


class ClusterIdentity(NamedTuple):
    """What the brokers of one cluster have in common."""

    cluster_id: str
    secret: bytes
    """Brokers prove to each other that they know it."""


async def cluster_identity(
    store: MetadataStore, random: Random, *, directory_cluster_id: str | None, secret: bytes | None
) -> ClusterIdentity:
    """Return the identity in the store; make it where there is none.

    ``directory_cluster_id``: the cluster of the data directory, None if the directory is new: it is
    then to be made for the cluster returned. ``secret``: the one given to this broker, if any.
    Raises FencedError for a directory of another cluster, or if another secret is stored.
    """
    while True:
        cell = await store.get(CLUSTER_KEY)
        if cell is not None:
            identity = _decoded(cell[0])
            break
        if directory_cluster_id is not None:
            raise FencedError(
                f"the data directory belongs to cluster {directory_cluster_id}, and the metadata "
                "store has no cluster: check the store's address and name"
            )
        identity = ClusterIdentity(
            topic_id_text(TopicId(random.bytes(16))), secret or random.bytes(SECRET_BYTES)
        )
        if await commit_known(store, [MetadataWrite(CLUSTER_KEY, _encoded(identity), 0)]):
            break
    if directory_cluster_id not in (None, identity.cluster_id):
        raise FencedError(
            f"the data directory belongs to cluster {directory_cluster_id}, the metadata store to "
            f"cluster {identity.cluster_id}"
        )
    if secret not in (None, identity.secret):
        raise FencedError(f"cluster {identity.cluster_id} has another secret than the given one")
    return identity


def _encoded(identity: ClusterIdentity) -> bytes:
    fields = {"id": identity.cluster_id, "secret": identity.secret.hex()}
    return json.dumps(fields, sort_keys=True).encode()


def _decoded(value: bytes) -> ClusterIdentity:
    try:
        fields = json.loads(value)
        identity = ClusterIdentity(str(fields["id"]), bytes.fromhex(fields["secret"]))
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptionError(f"metadata key {CLUSTER_KEY}: no cluster's: {error}") from error
    if not (identity.cluster_id and identity.secret):
        raise CorruptionError(f"metadata key {CLUSTER_KEY}: id or secret is empty")
    return identity
