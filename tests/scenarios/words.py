"""The words of the transcripts: how commands name things, and how answers are written."""

from collections.abc import Iterable
from typing import Any, TypeVar

from fencelog.coordination.shard import Decision
from fencelog.coordination.transaction.state import ProducerIdAndEpoch
from fencelog.types import ProducerEpoch, ProducerId, TopicPartition
from tests.support.runtime import Runtime

R = TypeVar("R")


def options(words: list[str]) -> dict[str, str]:
    """The ``key=value`` words of a command; ``flag`` alone means ``flag=yes``."""
    return {key: value or "yes" for key, _, value in (word.partition("=") for word in words)}


def identity(word: str) -> ProducerIdAndEpoch:
    """``7/3``: producer id 7, epoch 3."""
    producer_id, _, epoch = word.partition("/")
    return ProducerIdAndEpoch(ProducerId(int(producer_id)), ProducerEpoch(int(epoch)))


def partition(word: str) -> TopicPartition:
    """``orders-1``: partition 1 of orders."""
    topic, _, number = word.rpartition("-")
    return TopicPartition(topic, int(number))


def partitions(words: Iterable[str]) -> frozenset[TopicPartition]:
    """Several of them."""
    return frozenset(partition(word) for word in words)


def listed(named: Iterable[TopicPartition]) -> str:
    """Partitions in order, in brackets."""
    return "[" + " ".join(str(each) for each in sorted(named)) + "]"


class Stage:
    """A runtime that understands the commands that every shard's transcripts share."""

    runtime: Runtime[Any]

    def answer(self, command: str) -> str:
        """Obey one command line."""
        verb, *words = command.split()
        return str(getattr(self, f"do_{verb.replace('-', '_')}")(words))

    def decide(self, decision: Decision[R]) -> tuple[R, str]:
        """Append a decision; its answer, and a line for each record."""
        before = len(self.runtime.log)
        response = self.runtime.append(decision)
        return response, "".join(
            f"\nlog {self.record(at)}" for at in range(before, len(self.runtime.log))
        )

    def record(self, offset: int) -> str:
        """One record of the log, for the reader."""
        raise AssertionError(f"this stage does not write records ({offset})")

    def do_hold(self, _words: list[str]) -> str:
        """From here on nothing is committed: the disk is slow."""
        self.runtime.hold = True
        return ""

    def do_release(self, _words: list[str]) -> str:
        """Everything is committed, and goes on being so at once."""
        self.runtime.hold = False
        self.runtime.commit()
        return ""

    def do_crash(self, _words: list[str]) -> str:
        """The power fails: what was not committed is gone, and a new shard is loaded."""
        lost = len(self.runtime.log) - self.runtime.committed
        self.runtime.crash()
        self.runtime.hold = False
        return f"{lost} records lost, coordinator epoch {self.runtime.shard.coordinator_epoch}"

    def do_advance(self, words: list[str]) -> str:
        """Seconds pass, and what is due by then is done."""
        self.runtime.advance(float(words[0]))
        shard, runtime = self.runtime.shard, self.runtime
        _, written = self.decide(shard.expire(runtime.now, runtime.wall_ms))
        return written.lstrip()
