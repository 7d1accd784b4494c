"""Lists the mutants of source files as JSON; a process in mutmut's own environment, without ours.

``python _mutant_generate.py ROOT`` reads the files' paths from stdin, one a line, and writes one
line for each mutant. What is changed, and how, is mutmut's; its runner and its trampolines are not
used, so functions with decorators are mutated, too. Texts for people are left as they are: the
message of an exception or an assert, and calls of the log.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.file_mutation import (
    NEVER_MUTATE_FUNCTION_NAMES,
    MutationVisitor,
    deep_replace,
)
from mutmut.mutation.mutators import mutation_operators
from mutmut.mutation.pragma_handling import IgnoredCode

LOGS = ("log", "_log")
STRINGS = (cst.SimpleString, cst.FormattedString, cst.ConcatenatedString)


class Mutations(MutationVisitor):
    """All that mutmut would change in a file."""

    def _skip_node_and_children(self, node: cst.CSTNode) -> bool:
        if _is_text(node):
            return True
        if isinstance(node, cst.FunctionDef):
            return node.name.value in NEVER_MUTATE_FUNCTION_NAMES
        if isinstance(node, cst.Assert):
            self._messages.add(node.msg)
        return node in self._messages or super()._skip_node_and_children(node)

    def __init__(self) -> None:
        super().__init__(mutation_operators, IgnoredCode(set(), set(), set()))
        self._messages: set[cst.CSTNode | None] = set()


def _is_text(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.Raise) and isinstance(node.exc, cst.Call):
        return all(isinstance(each.value, STRINGS) for each in node.exc.args)
    return (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and isinstance(node.func.value, cst.Name)
        and node.func.value.value in LOGS
    )


def _functions(module: cst.Module) -> dict[cst.FunctionDef, str]:
    """Functions and methods by what Python calls them."""
    found: dict[cst.FunctionDef, str] = {}
    for statement in module.body:
        if isinstance(statement, cst.FunctionDef):
            found[statement] = statement.name.value
        elif isinstance(statement, cst.ClassDef):
            for inner in statement.body.body:
                if isinstance(inner, cst.FunctionDef):
                    found[inner] = f"{statement.name.value}.{inner.name.value}"
    return found


def _changed(before: list[str], after: list[str]) -> tuple[int, int, int]:
    """How many lines are alike at the beginning; where they are alike again, before and after."""
    shorter = min(len(before), len(after))
    first = next((i for i in range(shorter) if before[i] != after[i]), shorter)
    tail = next(
        (i for i in range(shorter - first) if before[-1 - i] != after[-1 - i]), shorter - first
    )
    return first, len(before) - tail, len(after) - tail


def mutants(file: str, text: str) -> Iterator[dict[str, object]]:
    """Every mutant of a file that compiles, in the order of its lines; none twice."""
    visitor = Mutations()
    wrapper = MetadataWrapper(cst.parse_module(text))
    module = wrapper.visit(visitor)
    positions = wrapper.resolve(PositionProvider)
    names, lines = _functions(module), text.splitlines(keepends=True)
    seen: set[tuple[object, ...]] = set()
    same: Counter[tuple[object, ...]] = Counter()
    for each in visitor.mutations:
        function = each.contained_by_top_level_function
        if function not in names:
            continue
        bare = function.with_changes(leading_lines=[])
        mutated = deep_replace(bare, each.original_node, each.mutated_node)
        before = module.code_for_node(bare).splitlines()
        after = module.code_for_node(mutated).splitlines()
        first, end, new_end = _changed(before, after)
        head = next(i for i, line in enumerate(before) if line.startswith(("def ", "async def ")))
        start = positions[function].start.line - 1 - head + first
        place = lines[start : start + end - first]
        indent = " " * positions[function].start.column
        old = [(indent + line).rstrip() for line in before[first:end]]
        new = [(indent + line).rstrip() for line in after[first:new_end]]
        assert [line.rstrip("\n") for line in place] == old, (file, names[function], place, old)
        key = (names[function], start, *old, "->", *new)
        if key in seen or not _compiles(lines, start, len(old), new):
            continue
        seen.add(key)
        kind = (names[function], *old, "->", *new)
        yield {
            "file": file,
            "where": names[function],
            "line": start + 1,
            "old": old,
            "new": new,
            "nth": same[kind],
            "body": sha256("\n".join(before).encode()).hexdigest()[:10],
        }
        same[kind] += 1


def _compiles(lines: list[str], start: int, count: int, new: list[str]) -> bool:
    text = "".join([*lines[:start], *(f"{line}\n" for line in new), *lines[start + count :]])
    try:
        compile(text, "mutant", "exec")
    except SyntaxError:
        return False
    return True


if __name__ == "__main__":
    root = Path(sys.argv[1])
    for name in sys.stdin.read().split():
        for mutant in mutants(name, (root / name).read_text(encoding="utf-8")):
            print(json.dumps(mutant))
