"""A producer of transaction version 2, spelled out (KIP-890)."""

from dataclasses import replace

from fencelog.coordination.shard import Decision
from fencelog.coordination.transaction.records import write_transaction
from fencelog.coordination.transaction.shard import TransactionShard
from fencelog.errors import ErrorCode
from fencelog.node import Node
from fencelog.types import ProducerEpoch
from fencelog.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from tests.support.groups import Member
from tests.support.node import batch
from tests.support.transactions import ID, Worker

PRODUCE_VERSION = 12
END_VERSION = 5
OFFSETS_VERSION = 5


class Producer2(Worker):
    """Its writes enlist; its ends take the next epoch, which it goes on with."""

    async def produce(
        self, topic: str, *values: str, partition: int = 0, version: int = PRODUCE_VERSION
    ) -> ErrorCode:
        return await super().produce(topic, *values, partition=partition, version=version)

    async def commit_offset(
        self, offset: int, member: Member | None = None, version: int = OFFSETS_VERSION
    ) -> ErrorCode:
        return await super().commit_offset(offset, member, version)

    async def end(self, *, commit: bool, version: int = END_VERSION) -> ErrorCode:
        error, given = await self.ask_to_end(commit=commit, version=version)
        if error is ErrorCode.NONE:
            self.producer_id, self.epoch = given
            self.sequence = 0
        return error

    async def ask_to_end(
        self, *, commit: bool, version: int = END_VERSION
    ) -> tuple[ErrorCode, tuple[int, int]]:
        """What the answer says; the producer does not hear of it."""
        request = EndTxnRequest(
            transactional_id=ID,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        answer = await self.peer.ask(request, version, EndTxnResponse)
        return ErrorCode(answer.error_code), (answer.producer_id, answer.producer_epoch)

    def send(self, topic: str, value: str, *, partition: int = 0) -> None:
        """A write whose answer nobody waits for yet; its sequence is not counted."""
        sent = batch(
            value,
            producer_id=self.producer_id,
            epoch=self.epoch,
            sequence=self.sequence,
            transactional=True,
        )
        self.peer.send_produce(
            topic, sent, partition=partition, transactional_id=ID, version=PRODUCE_VERSION
        )


async def age(node: Node, epoch: int) -> None:
    """Let the id be as old as though it had ended so many transactions."""

    def older(shard: TransactionShard) -> Decision[None]:
        found = shard.describe(ID)
        assert found is not None
        aged = found.producer._replace(producer_epoch=ProducerEpoch(epoch))
        return Decision((write_transaction(replace(found, producer=aged)),), None)

    await node.broker.transactions.decide(ID, lambda shard, now: older(shard))
