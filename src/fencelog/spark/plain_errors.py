"""An expected error reaches the user as its message, without Python's traceback.

Spark calls a data source in worker processes and copies the traceback of whatever a call raises
into its own error. Our errors say what is wrong and what to do, so the frames only hide that.
"""

import inspect
import os
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Final, ParamSpec, TypeVar, cast

from fencelog.errors import FencelogError

HIDE: Final = "SPARK_HIDE_TRACEBACK"
"""PySpark's variable of a worker: report an exception's text alone."""

C = TypeVar("C", bound=type)
P = ParamSpec("P")
R = TypeVar("R")


def plain_errors(cls: C) -> C:
    """Make every public method of the class report FencelogErrors as their text."""
    for name, member in list(vars(cls).items()):
        if inspect.isfunction(member) and not name.startswith("_"):
            setattr(cls, name, _plain(member))
    return cls


def _plain(method: Callable[P, R]) -> Callable[P, R]:
    @wraps(method)  # Spark looks at the signature
    def reporting(*arguments: P.args, **named: P.kwargs) -> R:
        try:
            result = method(*arguments, **named)
        except FencelogError as error:
            raise _without_traceback(error) from None
        return cast(R, _iterated(result)) if inspect.isgenerator(result) else result

    return reporting


def _iterated(results: Iterator[object]) -> Iterator[object]:
    try:
        yield from results
    except FencelogError as error:
        raise _without_traceback(error) from None


def _without_traceback(error: FencelogError) -> FencelogError:
    # A worker ends after it has reported an exception, so the variable is for this report alone.
    os.environ[HIDE] = "1"
    return error.with_traceback(None)
