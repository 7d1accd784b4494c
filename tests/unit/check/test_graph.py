"""Knots of a graph against a plain model: who reaches whom and back."""

from hypothesis import given
from hypothesis import strategies as st

from fencelog.check.graph import Graph, components, short_cycle

SIZE = 9
PAIRS = st.tuples(st.integers(0, SIZE - 1), st.integers(0, SIZE - 1)).filter(lambda e: e[0] != e[1])


def reach(edges: set[tuple[int, int]], start: int) -> set[int]:
    found: set[int] = set()
    work = [start]
    while work:
        vertex = work.pop()
        for source, target in edges:
            if source == vertex and target not in found:
                found.add(target)
                work.append(target)
    return found


@given(st.sets(PAIRS), st.permutations(range(SIZE)))
def test_components_are_what_reaches_each_other_in_any_order_of_the_vertices(edges, place) -> None:
    graph = Graph()
    for number, (source, target) in enumerate(sorted(edges)):
        graph.add(source, target, number)
    reached = {each: reach(edges, each) for each in range(SIZE)}
    model = {
        frozenset(b for b in range(SIZE) if b in reached[a] and a in reached[b]) | {a}
        for a in range(SIZE)
        if a in reached[a]
    }
    parts, kept = components(graph, place)
    assert {frozenset(part) for part in parts} == model
    for part in parts:
        starts = [(s, t) for s in part for t in kept[s] if t in part]
        path = short_cycle(kept, part, starts)
        assert 2 <= len(path) == len(set(path))
        for source, target in zip(path, [*path[1:], path[0]], strict=True):
            assert (source, target) in edges
