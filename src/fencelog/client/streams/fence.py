"""Cuts a reader that was declared offline off from its segments, before anybody takes them (R6)."""

from collections.abc import Collection

from fencelog.client.asynchronous import Claim
from fencelog.client.cluster import Cluster
from fencelog.client.grants import claim_options
from fencelog.client.ownership import Ownership
from fencelog.client.streams.group_model import LEASE_S
from fencelog.errors import ClaimRefusedError


async def fence(cluster: Cluster, group: str, resources: Collection[str], generation: int) -> None:
    """End the claims of these resources that have an earlier generation.

    They are claimed with this one and released: a release alone would let a process that was
    paused claim them again. Later generations are other readers', and stay. Raises RequestError.
    """
    ownership = Ownership(cluster)
    left = set(resources)
    while left:
        known = await ownership.describe(group, sorted(left))
        left -= {each.resource for each in known if each.generation >= generation}
        if not left:
            return
        options = claim_options(
            sorted(left),
            group=group,
            generation=generation,
            transactional_id=None,
            lease_s=LEASE_S,
            holder=None,
        )
        try:
            async with Claim(cluster, options, None, 0.0):
                return
        except ClaimRefusedError:
            continue  # another reader has claimed one of them meanwhile: the others are left
