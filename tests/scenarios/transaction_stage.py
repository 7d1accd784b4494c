"""Transcripts of the transaction coordinator."""

from dataclasses import replace

from fencelog.coordination.shard import Decision
from fencelog.coordination.transaction.records import read_key, read_value, write_transaction
from fencelog.coordination.transaction.shard import TransactionShard
from fencelog.coordination.transaction.state import ClientVersion, ProducerIdAndEpoch
from fencelog.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerEpoch
from tests.scenarios.words import Stage, identity, listed, options, partition, partitions
from tests.support.runtime import Runtime

NOBODY = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class TransactionStage(Stage):
    """One shard of ``__transaction_state``."""

    def __init__(self) -> None:
        self.runtime: Runtime[TransactionShard] = Runtime(TransactionShard)

    def record(self, offset: int) -> str:
        record = self.runtime.log[offset]
        if record.value is None:
            return f"{read_key(record.key)}: forgotten"
        it = read_value(read_key(record.key), record.value)
        producer = f"{it.producer.producer_id}/{it.producer.producer_epoch}"
        spoken = " v2" if it.client_version is ClientVersion.V2 else ""
        then = f" then {it.successor.producer_id}/0" if it.successor != it.producer else ""
        said = f"{it.state.kafka_name} {producer}{spoken}{then} {listed(it.partitions)}"
        return f"{it.transactional_id}: {said}"

    def do_init(self, words: list[str]) -> str:
        """``init ID [as=PID/EPOCH] [timeout=MS]``: InitProducerId."""
        given = options(words[1:])
        asked = identity(given["as"]) if "as" in given else NOBODY
        decision = self.runtime.shard.init_producer_id(
            words[0],
            int(given.get("timeout", "60000")),
            *asked,
            new_producer_id=self.runtime.fresh_producer_id,
            wall_ms=self.runtime.wall_ms,
        )
        result, written = self.decide(decision)
        self.runtime.used(result.producer_id)
        return f"{result.error.name} {result.producer_id}/{result.producer_epoch}{written}"

    def do_add(self, words: list[str]) -> str:
        """``add ID PID/EPOCH PARTITION…``: AddPartitionsToTxn."""
        return self._add(words, ClientVersion.V1)

    def do_enlist(self, words: list[str]) -> str:
        """``enlist ID PID/EPOCH PARTITION…``: the first write of a client of version 2."""
        return self._add(words, ClientVersion.V2)

    def _add(self, words: list[str], client_version: ClientVersion) -> str:
        error, written = self.decide(
            self.runtime.shard.add_partitions(
                words[0],
                *identity(words[1]),
                partitions(words[2:]),
                client_version=client_version,
                wall_ms=self.runtime.wall_ms,
            )
        )
        return f"{error.name}{written}"

    def do_verify(self, words: list[str]) -> str:
        """``verify ID PID/EPOCH PARTITION``: asked before a transaction's first append."""
        shard = self.runtime.shard
        return shard.verify(words[0], *identity(words[1]), partition(words[2])).name

    def do_end(self, words: list[str]) -> str:
        """``end ID PID/EPOCH commit|abort [v2]``: EndTxn, up to version 4 or from 5 on."""
        is_version_2 = words[3:] == ["v2"]
        result, written = self.decide(
            self.runtime.shard.end_transaction(
                words[0],
                *identity(words[1]),
                {"commit": True, "abort": False}[words[2]],
                client_version=ClientVersion.V2 if is_version_2 else ClientVersion.V1,
                new_producer_id=self.runtime.fresh_producer_id,
                wall_ms=self.runtime.wall_ms,
            )
        )
        self.runtime.used(result.producer.producer_id)
        given = f" {result.producer.producer_id}/{result.producer.producer_epoch}"
        return f"{result.error.name}{given if is_version_2 else ''}{written}"

    def do_markers(self, _words: list[str]) -> str:
        """What the marker sender sees."""
        tasks = self.runtime.shard.outstanding_markers(self.runtime.committed)
        lines = [
            f"{it.transactional_id}: {'commit' if it.commit else 'abort'} "
            f"{it.producer_id}/{it.producer_epoch} {listed(it.partitions)}"
            for it in tasks
        ]
        return "\n".join(lines) or "none"

    def do_written(self, words: list[str]) -> str:
        """``written ID PID/EPOCH PARTITION…``: these markers are committed on their partitions."""
        _, written = self.decide(
            self.runtime.shard.markers_written(
                words[0],
                *identity(words[1]),
                partitions(words[2:]),
                wall_ms=self.runtime.wall_ms,
            )
        )
        return written.lstrip() or "nothing"

    def do_deleted(self, words: list[str]) -> str:
        """``deleted PARTITION``: its topic is gone, and who sends markers says that they are in."""
        gone = partition(words[0])
        lines = [
            self.do_written(
                [it.transactional_id, f"{it.producer_id}/{it.producer_epoch}", words[0]]
            )
            for it in self.runtime.shard.outstanding_markers(self.runtime.committed)
            if gone in it.partitions
        ]
        return "\n".join(lines) or "nothing"

    def do_outcome(self, words: list[str]) -> str:
        """``outcome PID/EPOCH PARTITION``: what recovery asks of a transaction found open."""
        return self.runtime.shard.outcome(identity(words[0]), partition(words[1])).name

    def do_seen(self, words: list[str]) -> str:
        """``seen PID/EPOCH``: a start has found this in a partition's log."""
        shard, wall_ms = self.runtime.shard, self.runtime.wall_ms
        seen = dict([identity(words[0])])
        _, written = self.decide(shard.retire(seen, wall_ms=wall_ms))
        return written.lstrip() or "nothing"

    def do_describe(self, words: list[str]) -> str:
        """``describe ID``: DescribeTransactions."""
        it = self.runtime.shard.describe(words[0])
        if it is None:
            return "unknown"
        producer = f"{it.producer.producer_id}/{it.producer.producer_epoch}"
        return f"{it.state.kafka_name} {producer} timeout {it.timeout_ms} {listed(it.partitions)}"

    def do_age(self, words: list[str]) -> str:
        """``age ID EPOCH``: as though the producer had been initialised so many times."""
        it = self.runtime.shard.describe(words[0])
        assert it is not None
        aged = it.producer._replace(producer_epoch=ProducerEpoch(int(words[1])))
        record = write_transaction(replace(it, producer=aged))
        self.decide(Decision((record,), None))
        return f"{aged.producer_id}/{aged.producer_epoch}"
