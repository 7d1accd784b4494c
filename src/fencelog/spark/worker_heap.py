"""Keeps what a Python worker has imported away from the garbage collector.

Spark's worker collects all garbage after every task, before it takes the next one. That visits each
object of each imported module: 20 ms of CPU time for PySpark alone, 70 to 90 ms with pyarrow, numba
and the compiled kernels, in each of the workers that take part in a micro-batch, while Spark writes
its commit log on the same cores.
"""

import gc
import sys

_modules_frozen = 0


def freeze_imports() -> None:
    """Exempt all present objects from collection, if modules were imported since the last call.

    Called when a worker has done its work, so the caller's own objects are released by then. What
    is frozen by accident is still released by its reference count, unless it is part of a cycle.
    """
    global _modules_frozen  # noqa: PLW0603 - the collector is the process's as well
    count = len(sys.modules)
    if count != _modules_frozen:
        gc.freeze()
        _modules_frozen = count
