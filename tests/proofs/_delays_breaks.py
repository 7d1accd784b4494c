"""What keeps delayed messages out, taken away: the proof must see each."""

from dataclasses import dataclass

from tests.proofs._delays_schedule import Kind
from tests.simulation._bug import Bug, Edit
from tests.simulation._planted_coordinators import EPOCH_NOT_CHECKED


@dataclass(frozen=True)
class Break:
    """A bug, and the schedules that must find it."""

    bug: Bug
    kind: Kind


NO_AGE = Break(
    Bug(
        "connections have no age",
        "E14",
        "a request of version 1 counts on whichever connection it comes",
        (
            Edit(
                "broker/handlers/verification.py",
                "    if producer_id >= 0 and not broker.stale_connections.accepts("
                "*producer, key, number):\n",
                "    if False:\n",
            ),
        ),
    ),
    kind=Kind(version=1, mode="connection"),
)
BREAKS = (
    Break(
        Bug(
            "EndTxn takes no epoch",
            "E14",
            "a producer of version 2 goes on under the epoch that its last transaction had",
            (
                Edit(
                    "coordination/transaction/ending.py",
                    "        producer=current.fenced(),\n",
                    "        producer=current.producer,\n",
                ),
                Edit(
                    "coordination/transaction/shard.py",
                    "is_bumped=each.client_version is ClientVersion.V2,",
                    "is_bumped=False,",
                ),
            ),
        ),
        kind=Kind(version=2, mode="connection"),
    ),
    Break(EPOCH_NOT_CHECKED, kind=Kind(version=2, mode="connection")),
    NO_AGE,
)
