"""What clients do in a run, the same in the simulator and against real processes."""

from collections.abc import Callable, Mapping

from fencelog_sim.workload import Workload
from fencelog_sim.workloads.admin import admin
from fencelog_sim.workloads.bank import bank
from fencelog_sim.workloads.copy import copy
from fencelog_sim.workloads.keyed import keyed
from fencelog_sim.workloads.owners import owners
from fencelog_sim.workloads.queue import queue, queue_aiokafka
from fencelog_sim.workloads.quiet import quiet
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
    "versioned": versioned,
}
"""Every workload by its name; each call makes a fresh one."""
