"""Regular expressions for transactional ids, in linear time (ListTransactions, KIP-1152).

Python's ``re`` can take exponential time, in one step, for a pattern that a client chose. So only
single characters are matched with it, and their order is followed here. What tools send is
supported: characters, escapes, ``.``, classes (``[a-z]``, ``\\d``), the quantifiers ``*``, ``+``
and ``?``, and ``|`` between alternatives. Groups and counts are not.
"""

import re
import warnings
from collections.abc import Iterable
from typing import NamedTuple

from fencelog.errors import FencelogError

CHARACTERS_MAX = 100
_ATOM = re.compile(r"(\[\^?\]?(?:[^\]\\]|\\.)*\]|\\.|[^\\\[\](){}|*+?^$])([*+?]?)")


class PatternError(FencelogError):
    """A pattern is malformed, too long, or uses what is not supported."""


class _Atom(NamedTuple):
    """One character of the text, with its quantifier."""

    character: re.Pattern[str]
    is_optional: bool
    repeats: bool


class IdPattern:
    """A pattern that a whole id must match."""

    def __init__(self, pattern: str) -> None:
        """Read it. Raises PatternError."""
        if len(pattern) > CHARACTERS_MAX:
            raise PatternError(f"a pattern has at most {CHARACTERS_MAX} characters")
        self._alternatives: list[list[_Atom]] = [[]]
        position = 0
        while position < len(pattern):
            if pattern[position] == "|":
                self._alternatives.append([])
                position += 1
                continue
            found = _ATOM.match(pattern, position)
            if found is None:
                raise PatternError(f"the pattern is not supported from character {position} on")
            self._alternatives[-1].append(_atom(*found.groups()))
            position = found.end()

    def matches(self, text: str) -> bool:
        """Whether the whole text matches; the time is the product of both lengths at most."""
        return any(_follows(atoms, text) for atoms in self._alternatives)


def _atom(character: str, quantifier: str) -> _Atom:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a class that a later Python may read otherwise
            compiled = re.compile(character, re.DOTALL)
    except re.error as error:
        raise PatternError(f"{character}: {error}") from None
    return _Atom(compiled, is_optional=quantifier in {"*", "?"}, repeats=quantifier in {"*", "+"})


def _follows(atoms: list[_Atom], text: str) -> bool:
    """Follow all ways at once: at each character the atoms that may be next."""
    states = _reached(atoms, [0])
    for character in text:
        after = []
        for state in states:
            if state < len(atoms) and atoms[state].character.fullmatch(character):
                after.append(state + 1)
                if atoms[state].repeats:
                    after.append(state)
        states = _reached(atoms, after)
        if not states:
            return False
    return len(atoms) in states


def _reached(atoms: list[_Atom], states: Iterable[int]) -> set[int]:
    """Return the states, and those behind atoms that may be absent."""
    reached = set()
    for each in states:
        state = each
        reached.add(state)
        while state < len(atoms) and atoms[state].is_optional and state + 1 not in reached:
            state += 1
            reached.add(state)
    return reached
