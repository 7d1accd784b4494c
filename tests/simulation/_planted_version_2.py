"""Bugs in transaction version 2: the epoch of each end, its markers, the enlistment by a write."""

from tests.simulation._bug import Bug, Edit

ENDING = "coordination/transaction/ending.py"
ENLISTMENT = "broker/handlers/verification.py"

NO_NEW_EPOCH = Bug(
    "no epoch for the next transaction",
    "E14",
    "an end of version 2 keeps its epoch, like one of version 1",
    (
        Edit(
            ENDING,
            "        producer=current.fenced(),\n        previous=asked,\n",
            "        producer=current.producer,\n        previous=None,\n",
        ),
        Edit("broker/coordinators/marker_work.py", "is_bumped=task.is_bumped", "is_bumped=False"),
    ),
    ("queue", "bank", "copy"),
)
EQUAL_MARKER = Bug(
    "marker of the open transaction's own epoch",
    "E14",
    "a marker of version 2 that comes once more ends the transaction that has its epoch",
    (
        Edit(
            "log/validation.py",
            "    is_late = marker.is_bumped and marker.producer_epoch == state.epoch\n",
            "    is_late = False\n",
        ),
    ),
    ("queue", "bank"),
)
STALE_END = Bug(
    "end of the epoch before accepted",
    "E14",
    "a delayed EndTxn of the last transaction ends the one that is open",
    (
        Edit(
            ENDING,
            "    if current.successor.producer_epoch != asked.producer_epoch:\n",
            "    if current.successor.producer_epoch - asked.producer_epoch not in (0, 1):\n",
        ),
    ),
    ("queue", "bank"),
)
NOT_YET_ENLISTED = Bug(
    "enlistment used before it is durable",
    "E14, E16",
    "a first write is stored while a power cut may still erase its enlistment",
    (
        Edit(
            ENLISTMENT,
            "        error = await broker.transactions.decide_on(\n",
            "        error = broker.transactions._apply(\n",
        ),
        Edit(
            ENLISTMENT,
            "                wall_ms=broker.clock.now_ms(),\n            ),\n        )\n",
            "                wall_ms=broker.clock.now_ms(),\n            ),\n"
            '            __import__("fencelog.broker.coordinators.runtime", fromlist=["_"])'
            ".NO_TRANSACTION,\n        )\n",
        ),
    ),
    ("bank", "queue"),
)
ENLISTED_NOWHERE = Bug(
    "write of version 2 not enlisted",
    "E14",
    "a first write opens a transaction on a partition of which its coordinator does not know",
    (
        Edit(
            ENLISTMENT,
            "await _add_partitions(broker, transactional_id, producer, partitions)",
            "await _add_partitions(broker, transactional_id, producer, partitions[:0])",
        ),
    ),
    ("queue", "bank"),
)

VERSION_2_BUGS = (NO_NEW_EPOCH, EQUAL_MARKER, STALE_END, NOT_YET_ENLISTED, ENLISTED_NOWHERE)
