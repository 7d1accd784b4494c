"""How soon does the standby of ``fencelog run --own`` own a pipeline whose driver is killed?"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from bench._processes import percentile, scratch
from bench._report import Figure, Report, sized
from fencelog.client.blocking import Client
from fencelog.spark.driver_claim import resource_of
from fencelog.types import TopicPartition
from tests.support.broker import BrokerProcess
from tests.support.waiting import wait_until

PIPELINE, SOURCE, SINK = "copies", "records", "copied"
CODE = f"""
def pipeline(spark):
    rows = spark.readStream.format("fencelog").option("startingOffsets", "earliest")
    rows = rows.option("subscribe", "{SOURCE}").load().select("value")
    return rows.writeStream.format("fencelog").option("topic", "{SINK}")
"""
STEP_S = 120.0
LOOK_EVERY_S = 0.005
GOAL_S = 2.0
METHOD = (
    "A broker in `fsync` mode and drivers of one pipeline, each `fencelog run --own` in processes "
    "of its own. As soon as one stands by, SIGKILL goes to the driver that owns the pipeline and "
    "to all that it started; measured is until the broker describes the standby as the owner, "
    f"looked at every {1e3 * LOOK_EVERY_S:g} ms. In the rounds with output a query of the killed "
    "driver was running; their figure is until a record that the standby's query has copied is "
    "committed: Spark starts meanwhile."
)


class Driver:
    """One ``fencelog run --own``, in a process group of its own."""

    def __init__(self, place: Path, servers: str, number: int) -> None:
        """Start it."""
        self._stderr = place / f"driver-{number}.stderr"
        pipeline, checkpoints = place / f"{PIPELINE}.py", place / "checkpoints"
        arguments = [str(pipeline), "-b", servers, "--own", "--checkpoint", str(checkpoints)]
        with self._stderr.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fencelog", "run", *arguments],
                cwd=place,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Of its own process, which is in the name of the owner."""
        return self._process.pid

    def until_said(self, text: str) -> None:
        """Wait until it has written this to stderr."""

        def is_said() -> bool:
            said = self._stderr.read_text()
            assert self._process.poll() is None, said
            return text in said

        wait_until(is_said, deadline_s=STEP_S, what=text)

    def kill(self) -> None:
        """SIGKILL, its JVM and its workers, too."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Rig:
    """The broker's client, and the drivers one after another."""

    def __init__(self, place: Path, client: Client, servers: str, stack: ExitStack) -> None:
        """Start the first driver, and wait until it owns the pipeline."""
        self._place, self._client, self._servers, self._stack = place, client, servers, stack
        self._number = 0
        self._producer = stack.enter_context(client.producer())
        self._owner = self._new_driver()
        self._owner.until_said("owns pipeline")

    def _new_driver(self) -> Driver:
        self._number += 1
        driver = Driver(self._place, self._servers, self._number)
        self._stack.callback(driver.kill)
        return driver

    def take_over(self, *, copies: bool) -> tuple[float, float]:
        """Kill the owner once another stands by.

        Returns the seconds until that one owns the pipeline, and until it has copied a record that
        nobody had read before; 0.0 for these if it is not to copy.
        """
        standby = self._new_driver()
        standby.until_said("standing by")
        if copies:
            self._owner.until_said("has started")
        copied = self._copied()
        began = time.perf_counter()
        self._owner.kill()
        self._until(lambda: self._is_owner(standby), began)
        owned_s = time.perf_counter() - began
        self._owner = standby
        if not copies:
            return owned_s, 0.0
        self._producer.send(SOURCE, b"a record")
        self._producer.flush()
        self._until(lambda: self._copied() > copied, began)
        return owned_s, time.perf_counter() - began

    def _is_owner(self, driver: Driver) -> bool:
        (found,) = self._client.describe_ownership([resource_of(PIPELINE)])
        return found.holder is not None and found.holder.endswith(f":{driver.pid}")

    def _copied(self) -> int:
        """The end of the output at ``read_committed``."""
        partition = TopicPartition(SINK, 0)
        return self._client.offsets([partition], "latest")[partition]

    def _until(self, condition: Callable[[], bool], began: float) -> None:
        while not condition():
            assert time.perf_counter() - began < STEP_S, "it took too long"
            time.sleep(LOOK_EVERY_S)


def main() -> None:
    """Kill the owner, again and again."""
    report = Report("standby", "from a driver's death until the standby owns its pipeline", METHOD)
    rounds, with_output = sized(20, 2), sized(4, 1)
    owned, copied = [], []
    with ExitStack() as stack:
        place = stack.enter_context(scratch())
        (place / f"{PIPELINE}.py").write_text(CODE)
        broker = stack.enter_context(BrokerProcess(place / "data", durability="fsync"))
        client = stack.enter_context(Client(broker.address))
        client.create_topic(SOURCE)
        client.create_topic(SINK)
        rig = Rig(place, client, broker.address, stack)
        for number in range(rounds):
            is_copied = number >= rounds - with_output
            owned_s, copied_s = rig.take_over(copies=is_copied)
            owned.append(owned_s)
            copied += [copied_s] if is_copied else []
    for name, share in (("p50", 0.5), ("the longest", 1.0)):
        value = percentile(owned, share)
        report.add(
            Figure(
                name=f"claim of the standby, {rounds} kills, {name}",
                value=value,
                unit="s",
                goal=f"<= {GOAL_S:g} s",
                met=value <= GOAL_S,
            )
        )
    report.add(Figure(name="first record copied, p50", value=percentile(copied, 0.5), unit="s"))
    report.finish()


if __name__ == "__main__":
    main()
