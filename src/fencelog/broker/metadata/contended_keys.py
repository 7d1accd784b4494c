"""Changes of keys that other brokers may change at the same time."""

import asyncio
from collections.abc import Awaitable, Callable

from fencelog.broker.metadata.cluster_state import ClusterState
from fencelog.errors import ErrorCode, RequestError, StorageError
from fencelog.ports import MetadataStore

CONFLICTS_MAX = 10
"""After so many other changes at the same time a change is given up."""
SEEN_TIMEOUT_S = 15.0
"""How long a change may take to come back from the store."""


async def until_stored(
    state: ClusterState, store: MetadataStore, key: str, attempt: Callable[[], Awaitable[bool]]
) -> None:
    """Try until it is stored, with what is newest each time, and return when it is seen."""
    for _ in range(CONFLICTS_MAX):
        before, revision = state.versions.get(key, 0), state.revision
        stored = await attempt()
        await seen(state, store, key, before)
        if stored:
            return
        await state.until_soon(lambda: state.revision != revision)  # noqa: B023 - awaited here
    raise RequestError(ErrorCode.REQUEST_TIMED_OUT, f"{key} was changed by others all the time")


async def seen(state: ClusterState, store: MetadataStore, key: str, before: int) -> None:
    """Return when this broker's copy has the key as it is stored now, or newer.

    ``before``: the version that the copy had when the key was written, or is looked at. Raises
    RequestError if the store does not answer, or it takes too long: what was changed is stored all
    the same.
    """
    try:
        async with asyncio.timeout(SEEN_TIMEOUT_S):
            cell = await store.get(key)
            version = 0 if cell is None else cell[1]
            await state.until(
                lambda: (
                    state.revision >= version
                    if version
                    else not before or state.versions.get(key, 0) != before
                )
            )
    except TimeoutError:
        raise RequestError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"{key} is stored, but this broker does not see the metadata store's changes",
        ) from None
    except StorageError as error:
        raise RequestError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error
