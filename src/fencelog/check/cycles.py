"""Cycles of transactions: which read from which, and which wrote before which.

wr: one sent a value that the other read. ww: one's record is followed by the other's in a
partition. A cycle of wr edges alone would mean that each transaction committed before the next one
read from it, which read_committed excludes. A cycle with ww edges proves nothing: offsets are
assigned when records are sent, not when transactions commit, so records of concurrent transactions
are interleaved.
"""

from fencelog.check.facts import Facts
from fencelog.check.graph import Edges, Graph, components, short_cycle
from fencelog.check.tables import NONE, OK
from fencelog.check.verdict import Findings

STARTS_MAX = 16
"""Edges of a component from which a short cycle is searched."""


def check_cycles(facts: Facts, found: Findings) -> None:
    """Find cycles of reads, which are errors, and cycles with writes, which are reported."""
    cycles = _Cycles(facts, found)
    if cycles.has_any:
        cycles.check()


class _Cycles:
    """Only transactions that took place and have two keys, or write and read, can be in one."""

    def __init__(self, facts: Facts, found: Findings) -> None:
        self._facts = facts
        self._found = found
        ops = facts.history.ops
        self._takes_part = bytearray(len(ops))
        reads = bytearray(len(ops))
        for op in facts.history.runs.op:
            reads[op] = 1
        for op, sends in enumerate(ops.sends):
            if sends and ops.transactional[op] and facts.certain[op]:
                self._takes_part[op] = sends > 1 or reads[op]
        self.has_any = 1 in self._takes_part
        # Transactions roughly in the order in which they took place.
        self._place = [
            ended if outcome == OK else begun
            for begun, ended, outcome in zip(ops.begun, ops.ended, ops.outcome, strict=True)
        ]

    def check(self) -> None:
        reads, last_reads = self._reads()
        parts, edges = components(reads, self._place)
        for part in parts:
            if self._found.more("G1c"):
                self._keep("G1c", edges, part, set())
        writes = self._writes()
        parts, edges = components(writes, self._place)
        for part in parts:
            if self._found.more("G0"):
                self._keep("G0", edges, part, set())
        if len(last_reads):
            self._check_both(writes, last_reads)

    def _check_both(self, writes: Graph, reads: Graph) -> None:
        """Cycles with reads and writes."""
        wr = set(zip(reads.source, reads.target, strict=True))
        both = Graph()
        both.extend(writes)
        both.extend(reads)
        parts, edges = components(both, self._place)
        for part in parts:
            inside = set(part)
            starts = [
                (source, target)
                for source in part
                for target in edges[source]
                if target in inside and (source, target) in wr
            ]
            if starts and self._found.more("G1c-ww"):
                self._keep("G1c-ww", edges, part, set(starts[:STARTS_MAX]))

    def _reads(self) -> tuple[Graph, Graph]:
        """Edges from the sender of a value to its readers: all, and one for each run."""
        history, takes_part = self._facts.history, self._takes_part
        op_of = history.sends.op
        every, last = Graph(), Graph()
        for run, (reader, key) in enumerate(zip(history.runs.op, history.runs.key, strict=True)):
            if not takes_part[reader]:
                continue
            log, writers = history.logs[key], history.writers[key]
            sends = [writers[log[offset]] for offset in history.runs.offsets_of(run)]
            by_op = {op_of[send]: send for send in sends}
            for writer, send in by_op.items():
                if writer not in (NONE, reader) and takes_part[writer]:
                    every.add(writer, reader, send)
            writer = op_of[sends[-1]]
            if writer not in (NONE, reader) and takes_part[writer]:
                last.add(writer, reader, sends[-1])
        return every, last

    def _writes(self) -> Graph:
        """Edges from the sender of a record to the sender of the next one, for each key."""
        facts, takes_part = self._facts, self._takes_part
        op_of = facts.history.sends.op
        graph = Graph()
        for key, order in enumerate(facts.orders):
            before = NONE
            log, writers, unread = (
                facts.history.logs[key],
                facts.history.writers[key],
                facts.unread[key],
            )
            for offset in order:
                send = writers[log[offset]] if offset in log else unread[offset]
                op = op_of[send]
                if op == NONE or not takes_part[op]:
                    continue
                if before not in (NONE, op):
                    graph.add(before, op, send)
                before = op
        return graph

    def _keep(self, kind: str, edges: Edges, part: list[int], starts: set[tuple[int, int]]) -> None:
        if not starts:
            inside = set(part)
            edge_list = ((s, t) for s in part for t in edges[s] if t in inside)
            starts = {edge for edge, _ in zip(edge_list, range(STARTS_MAX), strict=False)}
        path = short_cycle(edges, part, sorted(starts))
        names = self._facts.history.processes.all
        ops = self._facts.history.ops
        who = [f"{names[ops.process[op]]} #{ops.number[op]}" for op in path]
        size = f", in a component of {len(part):,}" if len(part) > len(path) else ""
        self._found.keep(
            kind,
            f"{' → '.join([*who, who[0]])}{size}",
            [
                (op, self._step(op, after, edges[op][after]))
                for op, after in zip(path, [*path[1:], path[0]], strict=True)
            ],
            key=self._facts.history.sends.key[edges[path[0]][path[1]]],
        )

    def _step(self, op: int, after: int, send: int) -> str:
        """How one transaction of a cycle precedes the next."""
        history = self._facts.history
        sends = history.sends
        name, value = history.keys.all[sends.key[send]], sends.value[send]
        next_one = (
            f"{history.processes.all[history.ops.process[after]]} #{history.ops.number[after]}"
        )
        if sends.op[send] == op:
            return f"sent {value} to {name}, which {next_one} polled"
        offset = self._facts.position[send]
        return f"wrote to {name} before {next_one} sent {value}, at {offset}"
