"""Where the logs of the in-sync replicas begin: DeleteRecords waits for it, as in Kafka.

A follower raises its log start after its leader. If that leader were lost before, the next one
would have records again whose deletion was confirmed.
"""

import asyncio
from collections.abc import Mapping

from fencelog.broker.partitions.partition import Partition
from fencelog.broker.replicas.led import Key, Led, LedPartitions
from fencelog.errors import ErrorCode
from fencelog.types import Offset


class _Wait:
    """One request waits for one partition."""

    __slots__ = ("done", "error", "led", "offset")

    def __init__(self, led: Led, offset: Offset) -> None:
        self.led = led
        self.offset = offset
        self.error = ErrorCode.REQUEST_TIMED_OUT
        """What the request is told where the wait does not end before its deadline."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def look(self, led: Led | None) -> None:
        """End the wait if the low watermark is reached, or if it is another leader's to say."""
        if self.done.done():
            return
        if led is not self.led or led.partition.failure is not None:
            self._end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif led.low_watermark >= self.offset:
            self._end(ErrorCode.NONE)

    def _end(self, error: ErrorCode) -> None:
        self.error = error
        self.done.set_result(None)


class LowWatermarks:
    """The low watermarks of the partitions that are led here, and who waits for them."""

    def __init__(self, led: LedPartitions) -> None:
        """Nobody waits."""
        self._led = led
        self._waits: dict[Key, list[_Wait]] = {}
        led.acknowledged = self._look
        led.listeners.append(self._look)

    async def reached(
        self, offsets: Mapping[Partition, Offset], timeout_s: float
    ) -> dict[Partition, ErrorCode]:
        """See ``LowWatermarks`` of ``placement``."""
        leaderships = {led.partition: led for led in self._led.all()}
        found = dict.fromkeys(offsets, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        waits: dict[Partition, _Wait] = {}
        for partition, offset in offsets.items():
            if (led := leaderships.get(partition)) is not None:
                waits[partition] = _Wait(led, offset)
                self._waits.setdefault(led.key, []).append(waits[partition])
                waits[partition].look(led)
        try:
            async with asyncio.timeout(timeout_s):
                for wait in waits.values():
                    await wait.done
        except TimeoutError:
            pass
        finally:
            for wait in waits.values():
                self._forget(wait)
        return found | {partition: wait.error for partition, wait in waits.items()}

    def _forget(self, wait: _Wait) -> None:
        others = self._waits[wait.led.key]
        others.remove(wait)
        if not others:
            del self._waits[wait.led.key]

    def _look(self, key: Key) -> None:
        for wait in self._waits.get(key, ()):
            wait.look(self._led.get(key))
