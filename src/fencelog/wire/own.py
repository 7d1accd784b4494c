"""Names of versioned transactions on the wire: one reserved prefix for their transactional ids.

A request for an app goes to the coordinator that FindCoordinator names for the app's
transactional id. A client's own ``transactional.id`` must not begin with the prefix.
"""

import re

VERSIONED_PREFIX = "__fencelog.versioned/"


def transactional_id(app: str) -> str:
    """Return the transactional id of an app's producers; it also selects the coordinator."""
    return VERSIONED_PREFIX + app


def app_of(transactional_id: str | None) -> str | None:
    """Return the app of a versioned transactional id; None for any other id."""
    if transactional_id is None or not transactional_id.startswith(VERSIONED_PREFIX):
        return None
    return transactional_id.removeprefix(VERSIONED_PREFIX)


OWNED_PREFIX = "__fencelog.own/"
LEASE_MS_MIN = 500
LEASE_MS_MAX = 900_000
_EPOCH = re.compile(r"0|[1-9][0-9]{0,18}")
"""As an epoch is spelled; Python reads no number of thousands of digits."""


def producers_key(group: str | None, name: str) -> str:
    """Return what all transactional ids of a name in a group begin with.

    It selects their coordinator, so that all epochs of the name meet there (O8), and it is the
    resource under which the name's epochs are counted.
    """
    return f"{OWNED_PREFIX}{group or ''}/{name}"


def owned_id(key: str, epoch: int) -> str:
    """Return the transactional id of one claim of a name: its ``producers_key`` and the epoch."""
    return f"{key}~{epoch}"


def owned_key_of(transactional_id: str) -> tuple[str, int] | None:
    """Return the ``producers_key`` and the epoch of an owned id; None for any other id.

    An id with the reserved prefix that no claim can have been given has epoch -1.
    """
    if not transactional_id.startswith(OWNED_PREFIX):
        return None
    key, _, digits = transactional_id.rpartition("~")
    if not key or not _EPOCH.fullmatch(digits):
        return transactional_id, -1
    return key, int(digits)


def coordinated_by(transactional_id: str) -> str:
    """Return the key whose hash selects the coordinator of a transactional id."""
    owned = owned_key_of(transactional_id)
    return transactional_id if owned is None else owned[0]
