"""Claims that wait until their resources are free (O10).

Soft state: no record holds it, and a claimant whose connection closes or whose shard is loaded
again asks again. A place lasts for a lease from the last repetition of its claim. A later waiting
claim never overtakes an earlier one that wants one of its resources; one that does not wait may
take them.
"""

from bisect import bisect_left
from dataclasses import dataclass

from fencelog.coordination.ownership.model import Claim, OwnAnswer

RepeatKey = tuple[int, str | None, str]
"""What a repeated claim is recognised by: connection, group, claim id."""


@dataclass(frozen=True, slots=True)
class Waiter:
    """A waiting claim, and its number in the order of arrival."""

    claim: Claim
    names: tuple[str, ...]
    """The resources that it waits for, that of its transactional id included."""
    number: int


def repeat_key(claim: Claim) -> RepeatKey | None:
    """Return what a repetition of this claim is recognised by; None if it has no id."""
    return (claim.connection, claim.group, claim.claim_id) if claim.claim_id else None


class Waiting:
    """The waiting claims of one shard, indexed by resource and session."""

    def __init__(self) -> None:
        """Begin empty."""
        self._waiters: dict[int, Waiter] = {}
        self._sessions: dict[str, int] = {}
        self._queues: dict[tuple[str | None, str], list[int]] = {}
        self._repeats: dict[RepeatKey, str] = {}
        self._keys: dict[str, RepeatKey] = {}
        self._refusals: dict[str, OwnAnswer] = {}
        self._next = 0
        self.resource_count = 0
        self.candidates: dict[int, None] = {}
        """The numbers of those that may be granted now."""

    def __len__(self) -> int:
        """How many claims wait, or were refused since and have not asked again."""
        return len(self._waiters) + len(self._refusals)

    def add(self, claim: Claim, names: tuple[str, ...]) -> Waiter:
        """Queue a claim behind all others that want one of its resources."""
        waiter = Waiter(claim, names, self._next)
        self._next += 1
        self._waiters[waiter.number] = waiter
        self._sessions[claim.session] = waiter.number
        self.resource_count += len(names)
        for name in names:
            self._queues.setdefault((claim.group, name), []).append(waiter.number)
        self.recognise(claim)
        return waiter

    def recognise(self, claim: Claim) -> None:
        """Recognise repetitions of a claim from now on."""
        key = repeat_key(claim)
        if key is not None:
            self._repeats[key] = claim.session
            self._keys[claim.session] = key

    def session_of(self, claim: Claim) -> str | None:
        """The session of the claim that this one repeats; None if it repeats none."""
        key = repeat_key(claim)
        return None if key is None else self._repeats.get(key)

    def waiter(self, session: str) -> Waiter | None:
        """The waiting claim of this session."""
        number = self._sessions.get(session)
        return None if number is None else self._waiters[number]

    def count(self, group: str | None, name: str) -> int:
        """How many claims wait for a resource."""
        return len(self._queues.get((group, name), ()))

    def place(self, waiter: Waiter) -> int:
        """How many claims are before this one, in the longest of its queues."""
        return max(
            bisect_left(self._queues[waiter.claim.group, name], waiter.number)
            for name in waiter.names
        )

    def freed(self, group: str | None, name: str) -> None:
        """A resource may be free: the first that waits for it is a candidate."""
        queue = self._queues.get((group, name))
        if queue:
            self.candidates[queue[0]] = None

    def take_candidates(self, resources_max: int) -> list[Waiter]:
        """Return candidates that are the first for each of their resources, oldest first.

        So no two of them want the same one. They are candidates no more. Once ``resources_max`` is
        reached, the others stay.
        """
        taken: list[Waiter] = []
        count = 0
        for number in sorted(self.candidates):
            if count >= resources_max:
                break
            del self.candidates[number]
            waiter = self._waiters[number]
            if self.place(waiter) == 0:
                taken.append(waiter)
                count += len(waiter.names)
        return taken

    def remove(self, waiter: Waiter) -> None:
        """A claim waits no more; the next ones for its resources become candidates."""
        group = waiter.claim.group
        del self._waiters[waiter.number]
        del self._sessions[waiter.claim.session]
        self.candidates.pop(waiter.number, None)
        self.resource_count -= len(waiter.names)
        for name in waiter.names:
            queue = self._queues[group, name]
            del queue[bisect_left(queue, waiter.number)]
            if queue:
                self.candidates[queue[0]] = None
            else:
                del self._queues[group, name]

    def refuse(self, waiter: Waiter, answer: OwnAnswer) -> None:
        """A claim waits no more; its refusal is kept for its next repetition."""
        self.remove(waiter)
        self._refusals[waiter.claim.session] = answer

    def refusal(self, session: str) -> OwnAnswer | None:
        """How the waiting claim of this session was refused, if it was."""
        return self._refusals.get(session)

    def forget(self, session: str) -> None:
        """Forget all of a claim: its place, its refusal, and how its repetitions look."""
        waiter = self.waiter(session)
        if waiter is not None:
            self.remove(waiter)
        self._refusals.pop(session, None)
        key = self._keys.pop(session, None)
        if key is not None:
            del self._repeats[key]
