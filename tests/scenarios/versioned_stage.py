"""Transcripts of the coordinator of versioned transactions."""

from fencelog.coordination.versioned.records import (
    AppKey,
    ProducerKey,
    RunKey,
    read_app,
    read_key,
    read_producer,
)
from fencelog.coordination.versioned.sessions import Session
from fencelog.coordination.versioned.shard import VersionedShard
from fencelog.coordination.versioned.state import Caller
from fencelog.types import ProducerId
from tests.scenarios.words import Stage, identity, listed, options, partition, partitions
from tests.support.runtime import Runtime


def caller(words: list[str]) -> Caller:
    """``APP QUERY/RUN VERSION [takeover] [gaps] [host=H]``; an empty query is a batch write."""
    query_id, _, run_id = words[1].partition("/")
    return Caller(
        app=words[0],
        query_id=query_id,
        run_id=run_id,
        version=int(words[2]),
        takeover="takeover" in words,
        allow_gaps="gaps" in words,
        host=options(words).get("host", ""),
    )


class VersionedStage(Stage):
    """One shard of ``__fencelog_versioned``."""

    def __init__(self) -> None:
        self.runtime: Runtime[VersionedShard] = Runtime(VersionedShard)

    def record(self, offset: int) -> str:
        record = self.runtime.log[offset]
        key = read_key(record.key)
        match key:
            case AppKey(app) if record.value is not None:
                it = read_app(app, record.value)
                text = (
                    f"app {app}: {it.phase.name} {it.query_id}/{it.run_id} last={it.last_version}"
                )
                if it.version >= 0:
                    text += f" open={it.version}"
                return f"{text} incarnation={it.incarnation}"
            case ProducerKey(producer_id) if record.value is not None:
                joined = read_producer(producer_id, record.value)
                return f"producer {producer_id}: {joined.app} {listed(joined.partitions)}"
            case AppKey(name):
                return f"app {name}: forgotten"
            case ProducerKey(producer_id):
                return f"producer {producer_id}: forgotten"
            case RunKey(app, query_id, run_id):
                known = "known" if record.value is not None else "forgotten"
                return f"run {app} {query_id}/{run_id}: {known}"

    def do_join(self, words: list[str]) -> str:
        """``join CALLER [timeout=MS] [session=MS [connection=NUMBER]]``: JoinTransaction."""
        session = options(words).get("session")
        number = options(words).get("connection")
        decision = self.runtime.shard.join(
            caller(words),
            timeout_ms=int(options(words).get("timeout", "60000")),
            new_producer_id=self.runtime.fresh_producer_id,
            wall_ms=self.runtime.wall_ms,
            session=Session(
                timeout_ms=int(session),
                connection=None if number is None else int(number),
                now=self.runtime.now,
            )
            if session is not None
            else None,
        )
        result, written = self.decide(decision)
        self.runtime.used(result.producer_id)
        if result.producer_id < 0:
            return f"{result.error.name}{written}"
        producer = f"{result.producer_id}/{result.producer_epoch}"
        return f"{result.error.name} {producer} incarnation {result.incarnation}{written}"

    def do_enlist(self, words: list[str]) -> str:
        """``enlist PID/EPOCH PARTITION…``: the leader, before a producer's first append."""
        error, written = self.decide(
            self.runtime.shard.add_partitions(*identity(words[0]), *map(partition, words[1:]))
        )
        return f"{error.name}{written}"

    def do_commit(self, words: list[str]) -> str:
        """``commit CALLER print=TEXT [PID…]``: CommitTransaction."""
        named = [ProducerId(int(word)) for word in words[3:] if word.isdigit()]
        error, written = self.decide(
            self.runtime.shard.commit(
                caller(words),
                options(words)["print"].encode(),
                named,
                wall_ms=self.runtime.wall_ms,
            )
        )
        return f"{error.name}{written}"

    def do_abort(self, words: list[str]) -> str:
        """``abort CALLER [ends]``: AbortTransaction."""
        error, written = self.decide(
            self.runtime.shard.abort(
                caller(words), wall_ms=self.runtime.wall_ms, ends_run="ends" in words
            )
        )
        return f"{error.name}{written}"

    def do_renew(self, words: list[str]) -> str:
        """``renew CALLER [connection=NUMBER]``: RenewTransaction."""
        number = options(words).get("connection")
        connection = None if number is None else int(number)
        error, written = self.decide(
            self.runtime.shard.renew(caller(words), self.runtime.now, connection)
        )
        return f"{error.name}{written}"

    def do_disconnect(self, words: list[str]) -> str:
        """``disconnect NUMBER``: a client's connection is closed."""
        self.runtime.shard.disconnected(int(words[0]), self.runtime.now)
        return "ok"

    def do_markers(self, _words: list[str]) -> str:
        """What the marker sender sees: a line is one append."""
        lines = []
        for group in self.runtime.shard.outstanding_markers(self.runtime.committed):
            markers = " ".join(
                f"{'commit' if it.commit else 'abort'} {it.producer_id}/{it.producer_epoch}"
                for it in group.markers
            )
            lines.append(f"{group.app} {group.incarnation} {group.partition}: {markers}")
        return "\n".join(lines) or "none"

    def do_written(self, words: list[str]) -> str:
        """``written APP INCARNATION PARTITION…``: these markers are committed."""
        shard = self.runtime.shard
        _, written = self.decide(
            shard.markers_written(words[0], int(words[1]), partitions(words[2:]))
        )
        return written.lstrip() or "nothing"

    def do_deleted(self, words: list[str]) -> str:
        """``deleted PARTITION``: its topic is gone, and who sends markers says that they are in."""
        gone = partition(words[0])
        lines = [
            self.do_written([it.app, str(it.incarnation), words[0]])
            for it in self.runtime.shard.outstanding_markers(self.runtime.committed)
            if it.partition == gone
        ]
        return "\n".join(lines) or "nothing"

    def do_outcome(self, words: list[str]) -> str:
        """``outcome PID PARTITION``: what recovery asks for a transaction that it finds open."""
        return self.runtime.shard.outcome(ProducerId(int(words[0])), partition(words[1])).name

    def do_driver(self, words: list[str]) -> str:
        """``driver APP``: what DescribeApp says of the newest run."""
        it = self.runtime.shard.describe(words[0])
        assert it is not None
        assert it.run is not None
        return f"{it.run_id} since {it.run.since_ms} on {it.run.host}, changed {it.updated_ms}"

    def do_describe(self, words: list[str]) -> str:
        """``describe APP``: DescribeApp."""
        it = self.runtime.shard.describe(words[0])
        if it is None:
            return "unknown"
        producers = " ".join(f"{p.producer_id}{listed(p.partitions)}" for p in it.open_producers)
        return (
            f"last={it.last_version} driver={it.query_id}/{it.run_id} open={it.open_version} "
            f"incarnation={it.incarnation} {producers}"
        ).rstrip()
