"""TEMPORARY until Partition has it."""

from fencelog.broker.partitions.partition import Partition
from fencelog.broker.partitions.role import Alone
from fencelog.errors import NotLeaderError
from fencelog.types import Offset


class FollowerRole:
    def __init__(self):
        self.hw = Offset(0)
        self.durable = Offset(0)

    def flushed(self, end):
        self.durable = end
        return min(self.hw, end)


class ReplicaPartition(Partition):
    __slots__ = ()

    def __init__(self, name, log, store, *, enqueue, tails):
        super().__init__(
            name, log, store, role=Alone(), enqueue=enqueue, observer=None, tails=tails
        )

    @property
    def durable_end(self):
        return self.log._unflushed.durable.end_offset

    def lead(self, progress):
        self._purgatory.interrupt_readers()
        self.log.lead(progress.leader_epoch)
        self._role = progress
        self._advance(progress.flushed(self.durable_end))

    def follow(self, epoch):
        self._purgatory.fail(NotLeaderError("follows"))
        self._purgatory.resume()
        self.log.follow(epoch)
        self._role = FollowerRole()
        self._role.durable = self.durable_end

    def append_replicated(self, batch, header):
        o = self.log.append_replicated(batch, header)
        self._enqueue(self)
        return o

    def advance(self, hw):
        if isinstance(self._role, FollowerRole):
            self._role.hw = hw
            hw = min(hw, self._role.durable)
        self._advance(hw)

    async def write(self):
        end = await super().write()
        if end is not None:
            self._purgatory.advance(self.log.high_watermark)
        return end
