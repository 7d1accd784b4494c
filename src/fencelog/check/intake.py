"""Parses events into tables, with exact errors for malformed events."""

import json
from collections.abc import Callable, Iterable
from itertools import repeat

from fencelog.check.history import Event, Value
from fencelog.check.tables import (
    FAILED,
    INDETERMINATE,
    NONE,
    OK,
    End,
    Fault,
    History,
)
from fencelog.errors import FencelogError

MISSING = object()
OUTCOME_OF = {"ok": OK, "failed": FAILED, "indeterminate": INDETERMINATE}
END_FIELDS = ("log_start", "last_stable", "high_watermark", "log_end")
OFFSET_MAX = (1 << 63) - 1


class HistoryError(FencelogError):
    """A malformed history: the place, what is wrong, and a hint."""

    def __init__(self, place: str, what: str, hint: str) -> None:
        """``place`` is ``line 7`` or ``event 7``."""
        super().__init__(f"{place}: {what}")
        self.what = what
        self.hint = hint


class Intake:
    """Fills a history, event by event."""

    def __init__(self) -> None:
        """Begin with an empty history."""
        self.history = History()
        self.count = 0
        """Events so far; their order is the order in which they are added."""
        self.place: str | None = None
        """The source of the event, for errors; if empty, errors have its number."""
        self._open: dict[tuple[int, int | str], int] = {}
        self._reset_at: dict[int, int] = {}
        self._handlers: dict[str, Callable[[Event], None]] = {
            "invoke": self._invoke,
            "ok": self._complete,
            "failed": self._complete,
            "indeterminate": self._complete,
            "committing": self._committing,
            "reset": self._reset,
            "end": self._end,
            "group_end": self._group_end,
            "fault": self._fault,
            "meta": self._meta,
        }

    def error(self, what: str, hint: str) -> HistoryError:
        """An error at the present event."""
        return HistoryError(self.place or f"event {self.count}", what, hint)

    def add(self, event: Event) -> None:
        """Add one event. Raises HistoryError if it is malformed or in a wrong place."""
        self.count += 1
        try:
            handler = self._handlers[event["type"]]  # type: ignore[index]  # refused below
        except (KeyError, TypeError):
            kind = event.get("type") if type(event) is dict else event
            raise self.error(
                f"{_short(kind)} is not an event type",
                f"event types are {', '.join(self._handlers)}",
            ) from None
        try:
            handler(event)
        except KeyError as missing:
            raise self.error(
                f"the {event['type']} event has no field {missing}",
                "docs/guide/check.md lists the fields of each event",
            ) from None
        except OverflowError:
            raise self.error("a number is too large", "offsets are below 2^63") from None

    def _process(self, event: Event) -> int:
        name = event["process"]
        if type(name) is not str:
            raise self.error(f"process {_short(name)} is not a string", "name each client once")
        return self.history.processes[name]

    def _time(self, event: Event, name: str = "time") -> float:
        time = event[name]
        if type(time) is not float and type(time) is not int:
            raise self.error(f"{name} {_short(time)} is not a number", "times are in seconds")
        return time

    def _invoke(self, event: Event) -> None:
        history = self.history
        ops, process, number = history.ops, self._process(event), event["id"]
        if type(number) is not int and type(number) is not str:
            raise self.error(f"id {_short(number)} is not a number", "count a process's operations")
        op = ops.add(
            process,
            number,
            transactional=bool(event.get("transactional")),
            time=self._time(event),
        )
        ops.begun.append(self.count)
        ops.first_send.append(len(history.sends))
        if self._open.setdefault((process, number), op) != op:
            raise self.error(
                f"operation {number} of {event['process']} is invoked a second time",
                "give each client its own process name, and each of its operations its own id",
            )
        first = len(history.sends)
        again: list[tuple[int, int]] = []
        sourced = False
        for step in self._steps(event):
            if step[0] == "send":
                self._send(step, again)
                sourced = sourced or len(step) > 4
        history.sends.fill(op)
        ops.sends[op] = len(history.sends) - first
        for send, known in again:
            self._send_again(send, known)
        if sourced:
            steps = (step for step in self._steps(event) if step[0] == "send")
            for send, step in enumerate(steps, first):
                self._source(send, step)

    def _steps(self, event: Event) -> list[list[object]]:
        steps = event["steps"]
        if type(steps) is not list:
            raise self.error(f"steps {_short(steps)} is not a list", 'as in [["send", "t/0", 17]]')
        for step in steps:
            if type(step) is not list or not step or step[0] not in ("send", "poll", "commit"):
                raise self.error(
                    f"{_short(step)} is not a step",
                    "a step is a list that begins with send, poll or commit",
                )
        return steps

    def _send(self, step: list[object], again: list[tuple[int, int]]) -> None:
        """Add an invoked send; append it to ``again`` if its value is known."""
        key, value = self._key_and_value(step)
        sends = self.history.sends
        send = len(sends)
        sends.key.append(key)
        sends.value.append(value)
        known = self.history.writers[key].setdefault(value, send)
        if known != send:
            again.append((send, known))

    def _send_again(self, send: int, known: int) -> None:
        """Refuse a value that was sent before; accept one that was only polled before."""
        sends = self.history.sends
        key, value = sends.key[send], sends.value[send]
        if sends.op[known] != NONE:
            raise self.error(
                f"value {_short(value)} is sent to {self.history.keys.all[key]} a second time",
                "send each value once per key (add the attempt to it), "
                "else a duplicate cannot be told from a second message",
            )
        # It was polled before it was sent. That is a finding, not an error.
        self.history.writers[key][value] = send
        sends.polled[send], sends.reader[send] = sends.polled[known], sends.reader[known]
        sends.polled[known] = NONE

    def _key_and_value(self, step: list[object]) -> tuple[int, Value]:
        if len(step) < 3 or type(step[1]) is not str:
            raise self.error(f"{_short(step)} is not a send", 'as in ["send", "t/0", 17]')
        value = step[2]
        if type(value) is not int and type(value) is not str:
            raise self.error(
                f"value {_short(value)} is neither a number nor a string", "use one of them"
            )
        return self.history.keys[step[1]], value

    def _source(self, send: int, step: list[object]) -> None:
        source = step[4] if len(step) > 4 else None
        if source is None:
            return
        if type(source) is not list or len(source) != 2 or type(source[0]) is not str:
            raise self.error(f"{_short(source)} is not an input record", 'as in ["t/1", 5]')
        sends = self.history.sends
        sends.source_key[send] = self.history.keys[source[0]]
        sends.source_offset[send] = self._offset(source[1])

    def _offset(self, offset: object) -> int:
        if type(offset) is not int or not 0 <= offset <= OFFSET_MAX:
            raise self.error(f"{_short(offset)} is not an offset", "offsets are numbers from 0 on")
        return offset

    def _complete(self, event: Event) -> None:
        ops, process = self.history.ops, self._process(event)
        number = event["id"]
        try:
            op = self._open.pop((process, number))  # type: ignore[arg-type]  # refused below
        except (KeyError, TypeError):
            raise self.error(
                f"operation {_short(number)} of {event['process']} completes, but was not invoked",
                "write an invoke before and one completion after each operation",
            ) from None
        outcome = ops.outcome[op] = OUTCOME_OF[event["type"]]  # type: ignore[index]  # a key of it
        ops.completed[op] = self._time(event)
        ops.ended[op] = self.count
        if ops.completed[op] < ops.invoked[op]:
            raise self.error(
                f"operation {number} of {event['process']} completes before it is invoked",
                "use one clock for all times of a process",
            )
        if outcome != OK and "error" in event:
            ops.errors[op] = str(event["error"])
        sent = 0
        for place, step in enumerate(self._steps(event)):
            if step[0] == "send":
                self._sent(op, step)
                sent += 1
            elif step[0] == "poll":
                self._poll(op, place, step)
            else:
                self._commit(op, step)
        if outcome == OK and sent != ops.sends[op]:
            raise self.error(
                f"operation {number} is ok with {sent} sends of {ops.sends[op]} that it invoked",
                "ok means that all of it happened; else it is indeterminate, or failed",
            )
        if self._reset_at.get(process, 0) > ops.begun[op]:
            ops.reset_inside.add(op)

    def _sent(self, op: int, step: list[object]) -> None:
        """Add the result of a send."""
        key, value = self._key_and_value(step)
        sends = self.history.sends
        send = self.history.writers[key].get(value, NONE)
        if send == NONE or sends.op[send] != op:
            raise self.error(
                f"it completes a send of {_short(value)} to {step[1]} that it did not invoke",
                "an invocation names everything that is about to be sent",
            )
        if len(step) > 3 and step[3] is not None:
            sends.told[send] = self._offset(step[3])
        if len(step) > 4:
            self._source(send, step)

    def _poll(self, op: int, place: int, step: list[object]) -> None:
        """Add the records that a poll returned."""
        if len(step) == 1:
            return
        polled = step[1]
        if type(polled) is not dict:
            raise self.error(f"{_short(step)} is not a poll", 'as in ["poll", {"t/1": [[5, 90]]}]')
        history = self.history
        runs = history.runs
        for name, records in polled.items():
            if not records:
                continue
            try:
                offsets, values = zip(*records, strict=True)
            except (TypeError, ValueError):
                raise self.error(
                    f"{_short(records)} are not records of {name}", "as in [[5, 90], [6, 91]]"
                ) from None
            key = history.keys[name]
            # Most records were polled before, and a whole run of them is compared at once.
            if tuple(map(history.logs[key].get, offsets, repeat(MISSING))) != values:
                self._first_seen(op, key, zip(offsets, values, strict=True))
            runs.op.append(op)
            runs.key.append(key)
            runs.step.append(place)
            runs.start.append(len(runs.offsets))
            runs.offsets.extend(offsets)

    def _first_seen(self, op: int, key: int, records: Iterable[tuple[object, object]]) -> None:
        """Add records of which at least one is new or has another offset."""
        history = self.history
        sends, log, writers = history.sends, history.logs[key], history.writers[key]
        for raw_offset, value in records:
            offset = self._offset(raw_offset)
            if type(value) is not int and type(value) is not str:
                raise self.error(
                    f"value {_short(value)} is neither a number nor a string", "use one of them"
                )
            there = log.setdefault(offset, value)
            send = writers.get(value, NONE)
            if send == NONE:
                send = writers[value] = len(sends)
                sends.key.append(key)
                sends.value.append(value)
                sends.fill(NONE)
            if there != value:
                history.conflicts.setdefault((send, offset), op)
            if sends.polled[send] == NONE:
                sends.polled[send] = offset
                sends.reader[send] = op
            elif sends.polled[send] != offset:
                history.twice.setdefault((send, offset), op)

    def _commit(self, op: int, step: list[object]) -> None:
        if len(step) != 3 or type(step[1]) is not str or type(step[2]) is not dict:
            raise self.error(f"{_short(step)} is not a commit", 'as in ["commit", "g", {"t/1": 6}]')
        self.history.ops.group[op] = self.history.groups[step[1]]

    def _committing(self, event: Event) -> None:
        process, number = self._process(event), event["id"]
        op = self._open.get((process, number))  # type: ignore[arg-type]  # unknown ones are refused
        if op is None:
            raise self.error(
                f"operation {_short(number)} of {event['process']} commits, but was not invoked",
                "write it between the invocation and the completion",
            )
        # It may be requested again; the first time counts.
        self.history.ops.committing.setdefault(op, self._time(event))

    def _reset(self, event: Event) -> None:
        process = self._process(event)
        self._reset_at[process] = self.count
        self.history.resets.append((len(self.history.runs), process))

    def _end(self, event: Event) -> None:
        time = self._time(event)
        partitions = event["partitions"]
        if type(partitions) is not dict:
            raise self.error(
                f"partitions {_short(partitions)} is not an object", "keys are topic/partition"
            )
        for name, fields in partitions.items():
            if type(fields) is not dict or fields.keys() - set(END_FIELDS):
                raise self.error(
                    f"{_short(fields)} is not an object with the end offsets of {name}",
                    f"fields are {', '.join(END_FIELDS)}",
                )
            told = [
                None if fields.get(each) is None else self._offset(fields[each])
                for each in END_FIELDS
            ]
            self.history.ends.setdefault(self.history.keys[name], []).append(End(time, *told))

    def _group_end(self, event: Event) -> None:
        group, offsets = event["group"], event["offsets"]
        if type(group) is not str or type(offsets) is not dict:
            raise self.error(
                "that is not the end of a group", '"group" is a name, "offsets" by key'
            )
        history = self.history
        history.group_ends[history.groups[group]] = {
            history.keys[name]: self._offset(offset) for name, offset in offsets.items()
        }

    def _fault(self, event: Event) -> None:
        until = None if event.get("until") is None else self._time(event, "until")
        self.history.faults.append(Fault(self._time(event), until, str(event["what"])))

    def _meta(self, event: Event) -> None:
        self.history.meta.update({key: value for key, value in event.items() if key != "type"})


def _short(value: object) -> str:
    """A value as text for an error, shortened."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 60 else f"{text[:57]}…"


def gather(events: Iterable[Event]) -> History:
    """The tables of a history that is in memory; errors have the number of the event."""
    intake = Intake()
    for event in events:
        intake.add(event)
    return intake.history
