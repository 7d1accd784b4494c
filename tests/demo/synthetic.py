"""An event log as a stage with five faults writes it, for the tests of the report."""

from fencelog_demo.events import Event
from fencelog_demo.plan import EXACTLY_ONCE, PIPELINES, PLAN, Fault

DOWN_S = {"worker": 1.5, "broker": 2.0, "before-commit": 9.0, "after-commit": 9.0, "zombie": 10.0}


class Log:
    """Grows an event log with a clock of its own."""

    def __init__(self, start: float) -> None:
        self.at = start
        self.events: list[Event] = []

    def add(self, kind: str, **facts: object) -> None:
        self.events.append(Event(self.at, kind, facts))

    def reached(self, point: str, batch: int, tally: int) -> None:
        for pipeline in PIPELINES:
            facts = {"pipeline": pipeline, "point": point, "batch": batch, "tally": tally}
            self.add("reached", pid=700, ticket="t", **facts)


def events_of(rows: int) -> list[Event]:
    """A run over ten batches; fault n comes in batch 2n - 1 and costs its usual time."""
    log = Log(1_000_000.0)
    size = rows // 10
    log.add("started", role="broker", label="broker 1", pid=100)
    log.at += 0.6
    log.add("started", role="producer", label="producer 1", pid=200)
    log.at += 1.0
    log.add("started", role="driver", label="driver 1", pid=300)
    drivers, brokers = 1, 1
    for batch in range(10):
        log.at += 8.0 if batch == 0 else 1.4
        tally = size if batch < 9 else rows - 9 * size
        sent = min(rows, (batch + 3) * rows // 10)
        log.add("produced", rows=sent, aborted=sent // 6)
        log.reached("task-written", batch, tally)
        number, odd = divmod(batch, 2)
        fault = PLAN[number] if odd else None
        if fault:
            if fault.point == "after-commit":
                log.reached("after-commit", batch, tally)
            drivers, brokers = inject(log, fault, batch, drivers, brokers)
            log.reached("task-written", batch, tally)
        log.reached("before-commit", batch, tally)
        log.at += 0.1
        log.reached("after-commit", batch, tally)
        if fault and fault.freeze:
            log.add("resumed", signal="SIGCONT", pids={"302": "python"})
            log.at += 0.7
            log.add("fenced", pipeline=EXACTLY_ONCE, batch=batch, pid=302, reason="newer run")
            log.add("exited", role="driver", label="driver 3", pid=302, status=1)
    log.add("all-produced", rows=rows, aborted=rows // 6)
    log.add("exited", role="producer", label="producer 1", pid=200, status=0)
    log.at += 1.0
    log.add("exited", role="driver", label="driver 4", pid=303, status=130)
    log.add("over", delivered=rows)
    return log.events


def inject(log: Log, fault: Fault, batch: int, drivers: int, brokers: int) -> tuple[int, int]:
    """Log the fault, the end of its targets and their restart."""
    signal = "SIGSTOP" if fault.freeze else "SIGKILL"
    pid = {"worker": 900, "broker": 99 + brokers, "driver": 299 + drivers}[fault.role]
    pids = {str(pid): "python"}
    if fault.role == "driver":
        pids = {str(pid + 1000): "java", **pids, str(pid + 2000): "python3"}
    facts = {"fault": fault.name, "title": fault.title, "role": fault.role, "signal": signal}
    batches = dict.fromkeys(PIPELINES, batch)
    log.add("injected", batches=batches, point=fault.point, killer=50, pids=pids, **facts)
    log.at += 0.05
    if not fault.freeze:
        for target in pids:
            log.add("exited", role=fault.role, label="", pid=int(target), status=-9)
    if fault.role == "broker":
        brokers += 1
        log.add("started", role="broker", label=f"broker {brokers}", pid=99 + brokers)
    if fault.role == "driver":
        drivers += 1
        log.add("started", role="driver", label=f"driver {drivers}", pid=299 + drivers)
    log.at += DOWN_S[fault.name]
    return drivers, brokers
