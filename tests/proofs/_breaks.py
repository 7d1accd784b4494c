"""Breaks planted under the proofs: the source is copied, one place in the copy broken, and run.

A proof that cannot fail proves nothing. There is no switch in the product: the sound text is
replaced, and a break that no longer finds it fails loudly.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.proofs._spark_kills import Kill

SOURCE = Path(__file__).parent.parent.parent / "src"


@dataclass(frozen=True, kw_only=True)
class Break:
    """One wrong place: in which file, what stands there, and what is put instead."""

    name: str
    rule: str
    file: str
    sound: str
    broken: str


@dataclass(frozen=True, kw_only=True)
class BrokerBreak(Break):
    """A break that the kills of a broker must bring to light."""

    durability: str
    kills: int


@dataclass(frozen=True, kw_only=True)
class SparkBreak(Break):
    """A break that kills of Spark must bring to light."""

    kills: tuple[Kill, ...]


def plant(broken: Break, folder: Path) -> Mapping[str, str]:
    """Copy the source to a folder, break it, and return the environment that runs the copy."""
    copy = folder / f"broken-{broken.name.replace(' ', '-')}"
    # With their times, so that compiled files stay valid for all but the broken one.
    shutil.copytree(SOURCE, copy)
    file = copy / "fencelog" / broken.file
    text = file.read_text(encoding="utf-8")
    found = text.count(broken.sound)
    assert found == 1, f"{broken.name}: its line is {found} times in {broken.file}"
    file.write_text(text.replace(broken.sound, broken.broken), encoding="utf-8")
    return {"PYTHONPATH": str(copy)}


ANSWERED_BEFORE_WRITTEN = BrokerBreak(
    name="acknowledged, and written 20 ms later",
    rule="D1",
    file="broker/partitions/log_flusher.py",
    sound="        try:\n            await partition.store.write(tail)\n",
    broken=(
        "        partition.flushed(end_offset)\n"
        "        await asyncio.sleep(0.02)\n"
        "        try:\n"
        "            await partition.store.write(tail)\n"
    ),
    durability="os",
    kills=5,
)
RETRIES_FORGOTTEN = BrokerBreak(
    name="recovery forgets what may be retried",
    rule="E4, E15",
    file="log/rebuild.py",
    sound="        state.advance_start(min(state.log_start, state.log_end))\n",
    broken=(
        "        state.advance_start(min(state.log_start, state.log_end))\n"
        "        for producer in state.producers.values():\n"
        "            producer.batches.clear()\n"
        "            producer.next_sequence = -1\n"
    ),
    durability="fsync",
    kills=8,
)
ABORT_COMMITS = BrokerBreak(
    name="an abort is marked as a commit",
    rule="E10",
    file="broker/coordinators/marker_work.py",
    sound="commit=task.commit,",
    broken="commit=True,",
    durability="os",
    kills=1,
)
LAST_BATCH_DROPPED = BrokerBreak(
    name="recovery drops the last batch",
    rule="E15",
    file="storage/segment.py",
    sound="        if size > left:\n",
    broken="        if size >= left:\n",
    durability="os",
    kills=8,
)
MARKERS_OVERLOOKED = BrokerBreak(
    name="recovery overlooks markers",
    rule="E15",
    file="storage/recover.py",
    sound="_marker(batch) if header.is_control else None",
    broken="None",
    durability="os",
    kills=2,
)
BROKER_BREAKS = (
    ANSWERED_BEFORE_WRITTEN,
    RETRIES_FORGOTTEN,
    ABORT_COMMITS,
    LAST_BATCH_DROPPED,
    MARKERS_OVERLOOKED,
)

EVERY_ATTEMPT_COMMITS = SparkBreak(
    name="a commit takes in every attempt",
    rule="V1, S4",
    file="coordination/versioned/shard.py",
    sound="commit=each.producer_id in app.committing,",
    broken="commit=True,",
    kills=(Kill("worker", "written"),),
)
VERSIONS_FORGOTTEN = SparkBreak(
    name="a committed version is written again",
    rule="V3, S3",
    file="coordination/versioned/shard.py",
    sound="        if app.query_id != caller.query_id:\n",
    broken="        if True:\n",
    kills=(Kill("driver", "committed"),),
)
SPARK_BREAKS = (EVERY_ATTEMPT_COMMITS, VERSIONS_FORGOTTEN)
