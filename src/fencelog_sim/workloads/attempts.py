"""What a driver of versions handles: writers that joined, tries to commit, and how those end."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from fencelog.check.history import Completion, Invocation
from fencelog.client.model import Joined
from fencelog.errors import ErrorCode, FencelogError, RequestError
from fencelog_sim.workloads.own import OwnWriter
from fencelog_sim.workloads.plans import Send, completed


class WrongAnswerError(FencelogError):
    """The broker accepted what it must refuse, or refused what it must accept."""


@dataclass(frozen=True)
class Outcome:
    """How a try ended."""

    how: Completion
    error: str = ""


@dataclass(frozen=True)
class Attempt:
    """One writer and what it writes."""

    joined: Joined
    writer: OwnWriter
    sends: list[Send]


@dataclass(frozen=True)
class Batch:
    """One try to write a version."""

    run: str
    version: int
    winners: list[Attempt]
    losers: list[Attempt]
    invocation: Invocation

    @property
    def attempts(self) -> list[Attempt]:
        """All writers."""
        return [*self.winners, *self.losers]

    @property
    def named(self) -> list[int]:
        """The producers that its commit names."""
        return [winner.joined.producer_id for winner in self.winners]

    @property
    def sends(self) -> list[Send]:
        """What becomes visible if it is committed."""
        return [send for winner in self.winners for send in winner.sends]

    def record(self, outcome: Outcome, offsets: list[list[int]]) -> None:
        """Write down how it ended; the writes themselves were acknowledged."""
        steps = completed(self.sends, offsets, [])
        match outcome.how:
            case "ok":
                self.invocation.ok(steps)
            case "failed":
                self.invocation.failed(steps, outcome.error)
            case "indeterminate":
                self.invocation.indeterminate(steps, outcome.error)


Ending: TypeAlias = Callable[[Batch], Awaitable[Outcome]]


def query_of(app: str) -> str:
    """The query that every driver of an app says it runs."""
    return f"query of {app}"


def fingerprint_of(app: str, version: int) -> bytes:
    """The same for every try, as with Spark: a try repeats the version's input."""
    return f"{app}@{version}".encode()


async def must_refuse(what: str, code: ErrorCode, request: Awaitable[object]) -> None:
    """Raise WrongAnswerError where the request succeeds, and what else it failed with."""
    try:
        await request
    except RequestError as error:
        if error.code is not code:
            raise
    else:
        raise WrongAnswerError(f"{what} was accepted, but {code.name} was due")
