"""A history: the requests and results of each client, and the final state of the log.

One event is one JSON object, one line of a file. A client writes ``invoke`` before it acts, with
everything that it will send, and one completion afterwards; an invocation without one is
indeterminate, as after ``kill -9``. Partitions are keys, written ``topic/partition``. Each value is
sent once per key in a history, so that a duplicate can be told from a second message.

    {"type": "invoke", "id": 7, "process": "w1", "time": 1.25, "transactional": true,
     "steps": [["send", "t/0", 17]]}
    {"type": "ok", "id": 7, "process": "w1", "time": 1.3,
     "steps": [["send", "t/0", 17, 204], ["poll", {"t/1": [[5, 90]]}], ["commit", "g", {"t/1": 6}]]}
    {"type": "reset", "process": "w1", "time": 2.0, "how": "crash"}
    {"type": "end", "time": 9.0, "partitions": {"t/0": {"log_start": 0, "last_stable": 300,
     "high_watermark": 300, "log_end": 300}}}
    {"type": "group_end", "time": 9.0, "group": "g", "offsets": {"t/1": 6}}
    {"type": "committing", "id": 7, "process": "w1", "time": 1.28}
    {"type": "fault", "time": 1.1, "until": 1.4, "what": "kill broker 2"}
    {"type": "meta", "seed": 17}

Steps:

- ``["send", key, value]`` when invoked; completed with the offset, or null where it is not known.
  A fifth entry ``[key, offset]`` names the input record that the output was made from; give it
  when the send is invoked too (with null for the offset), or a crash hides it.
- ``["poll", {key: [[offset, value], …]}]``: records that this client read, in that order.
- ``["commit", group, {key: offset}]``: positions committed, in the transaction if there is one.

Completions: ``ok``; ``failed``, which promises that nothing of it will ever be visible; and
``indeterminate``. A timeout, a lost connection and NOT_LEADER_OR_FOLLOWER are indeterminate. An
abort is a failure only if no commit was attempted, or if the abort itself succeeded.

``reset`` says that a client's next poll need not continue from its last: it crashed, was assigned
other partitions, subscribed, or called seek. ``final`` as a prefix of a process's name marks
readers that read everything from the beginning after all faults are over. After a failed
transaction with polls, a client returns to its earlier position, or writes a ``reset``.

Three kinds of events are optional. ``committing`` says that the client will request a
transaction's commit: a reader that saw its records before that read too early. ``fault`` is shown
in charts, over its span if it has ``until``. ``meta`` has any information about the run.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

Value: TypeAlias = int | str
Step: TypeAlias = list[object]
Event: TypeAlias = dict[str, object]
Completion: TypeAlias = Literal["ok", "failed", "indeterminate"]
HowReset: TypeAlias = Literal["crash", "assign", "subscribe", "seek"]

FINAL = "final"
"""The prefix of processes that read everything at the end."""


def key_of(topic: str, partition: int) -> str:
    """The name of a partition in a history."""
    return f"{topic}/{partition}"


class Recorder:
    """Writes the events of one client."""

    def __init__(
        self, process: str, *, now: Callable[[], float], write: Callable[[Event], None]
    ) -> None:
        """``now`` is in seconds; ``write`` must have stored the event when it returns."""
        self.process = process
        self._now = now
        self._write = write
        self._next_id = 0

    def invoke(self, steps: Sequence[Step], *, transactional: bool = False) -> "Invocation":
        """Record what an operation will send, before it does."""
        self._next_id += 1
        self._emit(
            "invoke", id=self._next_id, transactional=transactional, steps=[list(s) for s in steps]
        )
        return Invocation(self, self._next_id)

    def reset(self, how: HowReset) -> None:
        """Record that the next poll need not continue from the last one."""
        self._emit("reset", how=how)

    def end(self, partitions: Mapping[str, Mapping[str, int]]) -> None:
        """Record the final offsets of partitions; see the module for the fields."""
        self._emit("end", partitions={key: dict(each) for key, each in partitions.items()})

    def group_end(self, group: str, offsets: Mapping[str, int]) -> None:
        """Record the final committed offsets of a group."""
        self._emit("group_end", group=group, offsets=dict(offsets))

    def fault(self, what: str, *, until: float | None = None) -> None:
        """Record a fault now, or from now ``until`` then; for the chart."""
        more: dict[str, object] = {"until": until} if until is not None else {}
        self._emit("fault", what=what, **more)

    def note(self, **fields: object) -> None:
        """Record anything else; it is not checked (``meta``)."""
        self._emit("meta", **fields)

    def committing(self, number: int) -> None:
        """Record that a commit will be requested; called by ``Invocation``."""
        self._emit("committing", id=number)

    def completed(
        self, number: int, how: Completion, steps: Sequence[Step], error: str | None
    ) -> None:
        """Write a completion; called by ``Invocation``."""
        more = {"error": error} if error is not None else {}
        self._emit(how, id=number, steps=[list(s) for s in steps], **more)

    def _emit(self, kind: str, **fields: object) -> None:
        self._write({"type": kind, "process": self.process, "time": self._now(), **fields})


class Invocation:
    """One operation in progress; call one of ``ok``, ``failed``, ``indeterminate``, or none."""

    def __init__(self, recorder: Recorder, number: int) -> None:
        """Use ``Recorder.invoke``."""
        self._recorder = recorder
        self._number = number

    def committing(self) -> None:
        """Record that the transaction's commit will be requested; optional, before ``ok``."""
        self._recorder.committing(self._number)

    def ok(self, steps: Sequence[Step]) -> None:
        """All of it happened; ``steps`` have their offsets and records."""
        self._recorder.completed(self._number, "ok", steps, None)

    def failed(self, steps: Sequence[Step], error: str) -> None:
        """None of it will ever be visible."""
        self._recorder.completed(self._number, "failed", steps, error)

    def indeterminate(self, steps: Sequence[Step], error: str) -> None:
        """It may have happened, or may still happen."""
        self._recorder.completed(self._number, "indeterminate", steps, error)
