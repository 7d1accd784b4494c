"""A fault that takes a rule out of a copy of the source, and the test that must see it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Planted:
    """One fault: in ``file`` this text becomes that one, and then ``test`` must fail."""

    rule: str
    file: str
    text: str
    instead: str
    test: str
