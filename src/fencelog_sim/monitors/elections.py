"""Who may end a leadership, and who may elect: looked at in the step of the commit."""

import json

from fencelog.coordination.controller.model import (
    BROKER_PREFIX,
    CONTROLLER_KEY,
    NO_LEADER,
    PartitionState,
    Registration,
)
from fencelog_sim.world.metadata import SimStore


def election_problem(store: SimStore, before: PartitionState, after: PartitionState) -> str | None:
    """Return what is wrong with a change of the leader that the store has just taken.

    A leader whose life goes on ends its leadership itself: it would show readers what is old by
    then. Any other one is replaced by the controller, as long as it is that; where nobody is left,
    the operator asks a broker, which is not looked at here.
    """
    if _is_live(store, before):
        if store.writer != before.leader:
            return f"broker {store.writer} ends a leadership that lasts: {after}"
        return None
    if after.leader == NO_LEADER or store.writer == 0:
        return None
    holder = store.values.get(CONTROLLER_KEY)
    controller = 0 if holder is None else int(json.loads(holder[0])["node_id"])
    if store.writer != controller:
        return f"broker {store.writer} elects, the controller is {controller}: {after}"
    if CONTROLLER_KEY not in store.compared:
        return f"broker {store.writer} elects, whoever is the controller by then: {after}"
    return None


def _is_live(store: SimStore, state: PartitionState) -> bool:
    """Whether a partition's leader is registered in the life that was elected."""
    key = f"{BROKER_PREFIX}{state.leader}"
    cell = store.values.get(key)
    if cell is None:
        return False
    return Registration.decode(key, cell[0]).incarnation == state.leader_life
