"""Claims for tests of ownership, and one who does a shard's outstanding work."""

from collections.abc import Sequence

from fencelog.coordination.ownership.model import (
    Claim,
    OwnAnswer,
    OwnershipLimits,
    OwnershipState,
    OwnershipTask,
    ResourceAnswer,
    Wanted,
)
from fencelog.coordination.ownership.shard import OwnershipShard
from fencelog.errors import ErrorCode
from fencelog.types import CoordinatorEpoch, Offset
from tests.support.runtime import Runtime

LEASE_S = 10
FENCE = Offset(7)


def wanted(text: str) -> Wanted:
    """``RESOURCE[@GENERATION][+PREV_EPOCH]``."""
    text, _, prev_epoch = text.partition("+")
    resource, _, generation = text.partition("@")
    return Wanted(resource, int(generation or -1), int(prev_epoch or -1))


def claim(
    session: str,
    *resources: str,
    group: str | None = None,
    name: str | None = None,
    waits: bool = False,
    connection: int | None = None,
    claim_id: str = "",
) -> Claim:
    """A claim of a session like ``s3``, on a connection of that number unless told otherwise."""
    return Claim(
        group=group,
        wanted=tuple(wanted(each) for each in resources),
        session=session,
        connection=int(session[1:]) if connection is None else connection,
        holder=f"holder of {session}",
        host="127.0.0.1",
        lease_ms=LEASE_S * 1000,
        name=name,
        waits=waits,
        claim_id=claim_id,
    )


class Owners:
    """A runtime with a shard, and short forms of what is asked of it."""

    def __init__(self, limits: OwnershipLimits | None = None, *, hold: bool = False) -> None:
        def make(coordinator_epoch: CoordinatorEpoch) -> OwnershipShard:
            return OwnershipShard(coordinator_epoch, limits)

        self.runtime: Runtime[OwnershipShard] = Runtime(make, hold=hold)

    @property
    def shard(self) -> OwnershipShard:
        return self.runtime.shard

    def own(self, asked: Claim) -> OwnAnswer:
        runtime = self.runtime
        return runtime.append(self.shard.own(asked, runtime.now, runtime.wall_ms))

    def granted(self, asked: Claim) -> OwnAnswer:
        """Claim and do all work; return the answer of the complete grant."""
        answer = self.own(asked)
        assert answer.error is ErrorCode.NONE, answer
        self.work()
        final = self.shard.answer_of(asked.session)
        assert final is not None, "the grant is not complete"
        assert final.error is ErrorCode.NONE, final
        return final

    def refused(self, asked: Claim) -> tuple[ErrorCode, list[ResourceAnswer]]:
        """Claim; return the error and the resources that were refused. Nothing is written."""
        before = len(self.runtime.log)
        answer = self.own(asked)
        assert answer.error not in (ErrorCode.NONE, ErrorCode.CLAIM_WAITING), answer
        assert len(self.runtime.log) == before
        return answer.error, [each for each in answer.resources if each.error]

    def epochs(self, asked: Claim) -> list[int]:
        return [each.epoch for each in self.granted(asked).resources]

    def generations(self, asked: Claim) -> list[int]:
        return [each.generation for each in self.granted(asked).resources]

    def tasks(self) -> dict[str, OwnershipTask]:
        tasks: dict[str, OwnershipTask] = {}
        for session in self.shard.outstanding(self.runtime.committed):
            task = self.shard.task(session)
            assert task is not None, session
            tasks[session] = task
        return tasks

    def done(self, task: OwnershipTask) -> None:
        runtime = self.runtime
        fences = dict.fromkeys(task.partitions, FENCE)
        runtime.append(self.shard.done(task.session, fences, runtime.wall_ms, is_live=task.is_live))

    def work(self) -> None:
        """Do all outstanding work, and all that follows from it at once."""
        while (tasks := self.tasks()) or self.is_due():
            for task in tasks.values():
                self.done(task)
            self.runtime.expire()

    def is_due(self) -> bool:
        deadline = self.shard.next_deadline()
        return deadline is not None and deadline <= self.runtime.now

    def release(self, session: str, group: str | None = None) -> list[ResourceAnswer]:
        runtime = self.runtime
        return list(runtime.append(self.shard.release(group, session, runtime.wall_ms)))

    def take(self, resources: Sequence[str], group: str | None = None) -> list[ResourceAnswer]:
        """An operator's release."""
        released = self.shard.release_resources(group, resources, self.runtime.wall_ms)
        answers, rest = self.runtime.append(released)
        assert rest == []
        return answers

    def disconnect(self, connection: int) -> None:
        self.shard.disconnected(connection)

    def lapse(self, seconds: float) -> None:
        """Let time pass, and do what is due then."""
        self.runtime.advance(seconds)
        self.runtime.expire()

    def renew(self, session: str, epoch: int, group: str | None = None) -> OwnAnswer:
        return self.runtime.append(self.shard.renew(group, session, epoch, self.runtime.now))

    def attach(self, session: str, epoch: int, group: str | None = None) -> ErrorCode:
        return self.runtime.append(self.shard.attach(group, session, epoch)).error

    def is_live(self, session: str) -> bool:
        """Whether a claim waits, or was granted and has not ended."""
        answer = self.shard.answer_of(session)
        return answer is None or answer.error is ErrorCode.NONE

    def settled(self) -> list[str]:
        return self.shard.take_settled(self.runtime.committed)

    def states(self, group: str | None = None) -> dict[str, OwnershipState]:
        _, found, _ = self.shard.describe(group, None, None, 1000)
        return {each.resource: each for each in found}
