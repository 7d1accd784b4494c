"""Names of versioned transactions on the wire: one reserved prefix for their transactional ids.

A request for an app goes to the coordinator that FindCoordinator names for the app's
transactional id. A client's own ``transactional.id`` must not begin with the prefix.
"""

VERSIONED_PREFIX = "__fencelog.versioned/"


def transactional_id(app: str) -> str:
    """Return the transactional id of an app's producers; it also selects the coordinator."""
    return VERSIONED_PREFIX + app


def app_of(transactional_id: str | None) -> str | None:
    """Return the app of a versioned transactional id; None for any other id."""
    if transactional_id is None or not transactional_id.startswith(VERSIONED_PREFIX):
        return None
    return transactional_id.removeprefix(VERSIONED_PREFIX)
