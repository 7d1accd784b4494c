"""Where a read starts and ends: offsets or timestamps, and their JSON.

Pure values and parsers; ``planning`` asks the cluster what they come to.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fencelog.types import TopicPartition

Position = Literal["earliest", "latest"] | int
"""An end of a partition, or an offset in it."""

LATEST, EARLIEST = -1, -2
"""The values for latest and earliest in the connector's JSON."""


@dataclass(frozen=True, kw_only=True)
class Positions:
    """Positions for all partitions that are read: one for all, or named ones; by offset or time.

    ``beyond_the_end`` is what a timestamp later than every record means: ``latest``, or None for
    an error.
    """

    everywhere: Literal["earliest", "latest"] | None = None
    everywhere_at_ms: int | None = None
    named: tuple[tuple[TopicPartition, Position], ...] = ()
    named_at_ms: tuple[tuple[TopicPartition, int], ...] = ()
    beyond_the_end: str | None = None

    @property
    def fixed(self) -> bool:
        """Whether resolving again gives the same offsets.

        Retention may move the earliest offset, and what it deletes is lost either way.
        """
        return (
            self.everywhere != "latest"
            and all(position != "latest" for _, position in self.named)
            and self.beyond_the_end is None
        )

    @property
    def by_time(self) -> bool:
        """Whether positions are timestamps."""
        return self.everywhere_at_ms is not None or bool(self.named_at_ms)


def parse_offsets(text: str) -> Positions:
    """``{"topic": {"0": 23, "1": -2}}``: offsets, -1 the latest, -2 the earliest."""
    named: list[tuple[TopicPartition, Position]] = []
    for partition, number in _numbers(text, minimum=EARLIEST).items():
        ends: dict[int, Position] = {LATEST: "latest", EARLIEST: "earliest"}
        named.append((partition, ends.get(number, number)))
    return Positions(named=tuple(named))


def parse_timestamps(text: str) -> tuple[tuple[TopicPartition, int], ...]:
    """``{"topic": {"0": 1700000000000}}``: milliseconds since 1970."""
    return tuple(_numbers(text, minimum=0).items())


def parse_assignment(text: str) -> tuple[TopicPartition, ...]:
    """``{"topic": [0, 1]}``: partitions."""
    partitions: list[TopicPartition] = []
    for topic, numbers in _object(text).items():
        if not isinstance(numbers, list) or not numbers:
            raise ValueError(f"'{topic}' needs a list of partitions, as in {{\"{topic}\": [0, 1]}}")
        for number in numbers:
            if not isinstance(number, int) or isinstance(number, bool) or number < 0:
                raise ValueError(f"'{topic}' has {number!r}; expected a partition number")
            partitions.append(TopicPartition(topic, number))
    return tuple(dict.fromkeys(partitions))


def _numbers(text: str, *, minimum: int) -> Mapping[TopicPartition, int]:
    numbers: dict[TopicPartition, int] = {}
    for topic, by_partition in _object(text).items():
        if not isinstance(by_partition, dict) or not by_partition:
            raise ValueError(
                f'\'{topic}\' needs numbers by partition, as in {{"{topic}": {{"0": 5}}}}'
            )
        for partition, number in by_partition.items():
            if not partition.isdecimal():
                raise ValueError(f"'{topic}' has {partition!r}; expected a partition number")
            if not isinstance(number, int) or isinstance(number, bool) or number < minimum:
                raise ValueError(
                    f"'{topic}' has {number!r}; expected a number of {minimum} or more"
                )
            numbers[TopicPartition(topic, int(partition))] = number
    return numbers


def _object(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error})") from error
    if not isinstance(value, dict) or not value:
        raise ValueError("expected a JSON object with topics as keys")
    return value
