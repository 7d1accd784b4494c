"""What clients do in a run, the same in the simulator and against real processes."""

from collections.abc import Callable, Mapping

from fencelog_sim.faults import Points
from fencelog_sim.workload import Workload
from fencelog_sim.workloads.admin import POINTS as ADMIN_POINTS
from fencelog_sim.workloads.admin import admin
from fencelog_sim.workloads.bank import bank
from fencelog_sim.workloads.copy import copy
from fencelog_sim.workloads.keyed import keyed
from fencelog_sim.workloads.owners import owners
from fencelog_sim.workloads.queue import queue, queue_aiokafka
from fencelog_sim.workloads.quiet import quiet
from fencelog_sim.workloads.readers import readers
from fencelog_sim.workloads.streams import POINTS as STREAM_POINTS
from fencelog_sim.workloads.streams import streams
from fencelog_sim.workloads.versioned import versioned

WORKLOADS: Mapping[str, Callable[[], Workload]] = {
    "queue": queue,
    "queue-aiokafka": queue_aiokafka,
    "admin": admin,
    "bank": bank,
    "copy": copy,
    "keyed": keyed,
    "owners": owners,
    "quiet": quiet,
    "readers": readers,
    "streams": streams,
    "versioned": versioned,
}
"""Every workload by its name; each call makes a fresh one."""

POINTS: Mapping[str, Points] = {
    "admin": ADMIN_POINTS,
    "streams": STREAM_POINTS,
    "readers": STREAM_POINTS,
}
"""What faults may wait for besides, by the workload's name."""
