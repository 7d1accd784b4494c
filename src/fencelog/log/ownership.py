"""Who owns a partition, as its own log says it (O8, O9)."""

from typing import NamedTuple


class Owner(NamedTuple):
    """The content of an ownership record: the last grant in one group, or its end.

    Attributes:
        group: the group whose reader it is; None: the owner of the partition's writes.
        epoch: the fencing token of the grant (O3).
        session: the session of the claim; requests of connections attached to it are the owner's.
        transactional_id: a producer with this id writes for the owner; None if there is none.
        holder: the name that refusals show.
        is_live: whether the claim still holds it; False once it was released or its owner died.
    """

    group: str | None
    epoch: int
    session: str
    transactional_id: str | None
    holder: str
    is_live: bool
