"""Strongly connected components of large, nearly acyclic graphs, and short cycles."""

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

Edges: TypeAlias = dict[int, dict[int, int]]
"""Source and target vertex, and the number of what connects them."""


class Graph:
    """Edges between numbered vertices."""

    def __init__(self) -> None:
        """Begin without edges."""
        self.source = array("i")
        self.target = array("i")
        self.via = array("q")

    def __len__(self) -> int:
        """How many edges there are."""
        return len(self.source)

    def add(self, source: int, target: int, via: int) -> None:
        """Add an edge."""
        self.source.append(source)
        self.target.append(target)
        self.via.append(via)

    def extend(self, other: "Graph") -> None:
        """Add all edges of another one."""
        self.source.extend(other.source)
        self.target.extend(other.target)
        self.via.extend(other.via)


def components(graph: Graph, place: Sequence[int]) -> tuple[list[list[int]], Edges]:
    """Strongly connected components of two or more vertices, and the edges near them.

    ``place`` orders all vertices so that most edges lead upwards. A cycle needs a downward edge,
    and lies within a run of overlapping ones. Everything else is skipped, so the cost depends on
    the number of downward edges and not on the size of the graph.
    """
    bottoms, tops = _stretches(graph, place)
    if not bottoms:
        return [], {}
    edges: Edges = {}
    for source, target, via in zip(graph.source, graph.target, graph.via, strict=True):
        stretch = bisect_right(bottoms, place[source]) - 1
        if (
            stretch >= 0
            and place[source] <= tops[stretch]
            and bottoms[stretch] <= place[target] <= tops[stretch]
        ):
            edges.setdefault(source, {})[target] = via
    return _components(edges), edges


def _stretches(graph: Graph, place: Sequence[int]) -> tuple[list[int], list[int]]:
    """Start and end of runs of overlapping downward edges."""
    down = sorted(
        (low, high)
        for source, target in zip(graph.source, graph.target, strict=True)
        if (low := place[target]) < (high := place[source])
    )
    bottoms: list[int] = []
    tops: list[int] = []
    for low, high in down:
        if tops and low <= tops[-1]:
            tops[-1] = max(tops[-1], high)
        else:
            bottoms.append(low)
            tops.append(high)
    return bottoms, tops


def _components(edges: Edges) -> list[list[int]]:
    """Tarjan's algorithm, without recursion: components of two or more vertices."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[list[int]] = []
    for root in edges:
        if root in index:
            continue
        work = [(root, iter(edges[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            vertex, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(edges.get(target, ()))))
                    break
                if target in on_stack:
                    low[vertex] = min(low[vertex], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[vertex])
                if low[vertex] == index[vertex]:
                    part = _pop_part(stack, on_stack, vertex)
                    if len(part) > 1:
                        found.append(part)
    return found


def _pop_part(stack: list[int], on_stack: set[int], last: int) -> list[int]:
    part: list[int] = []
    while not part or part[-1] != last:
        part.append(stack.pop())
        on_stack.discard(part[-1])
    return part


def short_cycle(edges: Edges, part: Sequence[int], starts: Sequence[tuple[int, int]]) -> list[int]:
    """A short cycle in a component that begins with one of these edges; its vertices in order."""
    inside = set(part)
    best: list[int] = []
    for source, target in starts:
        path = _path(edges, inside, target, source)
        if path and (not best or len(path) < len(best)):
            best = path
    return best


def _path(edges: Edges, inside: set[int], start: int, goal: int) -> list[int]:
    """A shortest path, by breadth-first search."""
    before = {start: start}
    queue = deque([start])
    while queue:
        vertex = queue.popleft()
        if vertex == goal:
            path = [vertex]
            while path[-1] != start:
                path.append(before[path[-1]])
            return path[::-1]
        for target in edges.get(vertex, ()):
            if target in inside and target not in before:
                before[target] = vertex
                queue.append(target)
    return []
