"""``fencelog run --own``: of the drivers of a pipeline one runs, and the others stand by (O10).

The claim decides who runs; the sink's own fence (V2) decides whose batches count. A driver that
was taken over stops because of the first, and could commit nothing because of the second.
"""

from collections.abc import Callable
from threading import Thread
from types import TracebackType
from typing import TYPE_CHECKING, Self

import fencelog
from fencelog.errors import FencelogError, OwnershipLostError

if TYPE_CHECKING:
    from fencelog.client.blocking import Client
    from fencelog.client.blocking_claim import Claim


def resource_of(pipeline: str) -> str:
    """The resource that the driver of a pipeline owns: no topic has a colon, so no partition."""
    return f"pipeline:{pipeline}"


class DriverClaim:
    """The claim of one driver. A context manager: leaving releases it.

    Attributes:
        pipeline: the name that the drivers have in common.
    """

    def __init__(
        self,
        servers: str,
        pipeline: str,
        tell: Callable[[str], None],
        on_lost: Callable[[OwnershipLostError], None],
    ) -> None:
        """Nothing is sent before ``acquire``. ``on_lost`` is called in the client's thread."""
        self.pipeline = pipeline
        self._servers = servers
        self._tell, self._on_lost = tell, on_lost
        self._client: Client | None = None
        self._claim: Claim | None = None

    def acquire(self) -> None:
        """Stand by until no other driver runs the pipeline, and claim it. Raises RequestError."""
        self._client = client = fencelog.connect(self._servers)

        def stand_by(place: int) -> None:
            # The client's thread must not wait for its own answers.
            Thread(target=self._tell_who_runs, args=(client, place), daemon=True).start()

        self._claim = client.own(resource_of(self.pipeline), wait=True, on_waiting=stand_by)
        self._tell(f"owns pipeline '{self.pipeline}', epoch {self._claim.epoch}")
        self._claim.on_lost(self._on_lost)

    def settle(self) -> None:
        """Wait until it is known whether the claim is lost, at most until its lease is over."""
        if self._claim is not None:
            try:
                self._claim.check()
            except OwnershipLostError:
                return  # ``on_lost`` was called

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the claim, so that a driver that stands by starts at once."""
        try:
            if self._claim is not None:
                self._claim.release()
        finally:
            if self._client is not None:
                self._client.close()

    def _tell_who_runs(self, client: "Client", place: int) -> None:
        try:
            (found,) = client.describe_ownership([resource_of(self.pipeline)])
            holder = found.holder or "another driver"
        except (FencelogError, ValueError):
            holder = "another driver"
        ahead = f"; {place} claims are before this one" if place else ""
        if self._claim is None:  # it may have been granted meanwhile
            self._tell(f"standing by: {holder} runs pipeline '{self.pipeline}'{ahead}")
