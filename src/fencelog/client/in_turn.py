"""What any broker can answer is asked of one after the other, and a silent one holds up nobody."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from fencelog.errors import ErrorCode, RequestError

K = TypeVar("K")
T = TypeVar("T")

SILENT_S = 2.0
"""Who has not answered for so long is paused, cut off, or busy with an earlier request."""


async def ask_in_turn(
    whom: Sequence[K], ask: Callable[[K], Coroutine[Any, Any, T]], overtaken: Callable[[K], None]
) -> T:
    """Return the first answer. The next one is asked when one fails, or is silent.

    A silent one may still answer first: its connection stays, with what else waits there.
    ``overtaken`` is told of those that have not answered by then. Raises RequestError:
    NETWORK_EXCEPTION with all failures if nobody answers, any other one at once.
    """
    if len(whom) == 1:
        return await ask(whom[0])
    loop = asyncio.get_running_loop()
    rest = list(reversed(whom))
    asked: dict[asyncio.Task[T], K] = {}
    failures = []
    try:
        while rest or asked:
            if rest:
                each = rest.pop()
                asked[loop.create_task(ask(each))] = each
            limit_s = SILENT_S if rest else None
            done, _ = await asyncio.wait(asked, timeout=limit_s, return_when="FIRST_COMPLETED")
            for task in [each for each in asked if each in done]:
                del asked[task]
                error = task.exception()
                if error is None:
                    for silent in asked.values():
                        overtaken(silent)
                    return task.result()
                if not isinstance(error, RequestError) or (
                    error.code is not ErrorCode.NETWORK_EXCEPTION
                ):
                    raise error
                failures.append(error.text)
    finally:
        for task in asked:
            if not task.cancel() and not task.cancelled():
                task.exception()  # it came too late to count
    raise RequestError(ErrorCode.NETWORK_EXCEPTION, "; ".join(failures))
