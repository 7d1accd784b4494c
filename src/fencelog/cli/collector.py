"""Garbage collection for a process that holds a million objects: no collection visits them all.

Reference counts free most objects; the collector looks for cycles. Python's full collection visits
every object there is, and nothing else runs meanwhile: with 9,000 open partitions that is a third
of a second. So what has survived a full collection is frozen, which exempts it from later ones.
"""

import gc
from collections.abc import Mapping
from typing import Self

_OLDEST = 2
"""Python's number of the generation that a full collection visits."""

SURVIVORS_MAX = 6_000
"""Objects that every full collection may visit again; more are frozen."""
THRESHOLDS = (3_000, 1, 0)
"""For Python's three generations. A request with thousands of items creates as many objects, so the
first is higher than Python's. The others let no more than a few times as many objects come together
for one collection: with ten thousand connections that takes some microseconds for each object.
"""
_NO_FULL_COLLECTION = (THRESHOLDS[0], THRESHOLDS[1], 1 << 30)
FROZEN_MORE_MAX = 2_000_000
"""Objects that may be frozen before all of them are visited once: cycles among them are a leak."""


class Collector:
    """The garbage collector of this process: ``start``, then ``serve``."""

    def __init__(self, frozen_more_max: int = FROZEN_MORE_MAX) -> None:
        """Nothing is changed before ``start``."""
        self._frozen_more_max = frozen_more_max
        self._frozen = 0
        """How many objects are frozen, at most: some may have been freed since."""
        self._frozen_max = 0
        self._visits_all = False
        """Whether nothing is frozen, so that the next full collection visits all objects."""

    def start(self) -> Self:
        """Run no full collection until ``serve``: nearly all that a start creates stays."""
        gc.callbacks.append(self.collected)
        gc.set_threshold(*_NO_FULL_COLLECTION)
        return self

    def serve(self) -> None:
        """Exempt what is there from collection."""
        gc.freeze()
        self._froze_all(gc.get_freeze_count())
        gc.set_threshold(*THRESHOLDS)

    def collected(self, phase: str, info: Mapping[str, int]) -> None:
        """Freeze what has survived a full collection, if it is much: a callback of ``gc``."""
        if phase != "stop" or info["generation"] < _OLDEST:
            return
        survivors = len(gc.get_objects(generation=_OLDEST))
        if survivors <= SURVIVORS_MAX:
            return
        gc.freeze()
        self._frozen += survivors
        if self._visits_all:
            self._visits_all = False
            self._froze_all(survivors)
        elif self._frozen > self._frozen_max:
            self._frozen = gc.get_freeze_count()
            if self._frozen > self._frozen_max:
                gc.unfreeze()
                self._visits_all = True

    def _froze_all(self, count: int) -> None:
        self._frozen = count
        self._frozen_max = count + max(count, self._frozen_more_max)
