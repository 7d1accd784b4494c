"""Bugs in what coordinators decide, answer and carry out, and in what they hand out."""

from tests.simulation._bug import Bug, Edit

SHARD = "coordination/transaction/shard.py"
ENDING = "coordination/transaction/ending.py"
RUNTIME = "broker/coordinators/runtime.py"
SENDER = "broker/coordinators/marker_sender.py"
PRODUCER_IDS = "broker/coordinators/producer_ids.py"
VERSIONED = "coordination/versioned/shard.py"
TABLE = "coordination/versioned/table.py"
CHECKED = "        assert not isinstance(response, Rejected), response\n"
SETTLED = f"{CHECKED}        await self._settled(loaded)\n        return response\n"

EPOCH_NOT_CHECKED = Bug(
    "epoch not checked",
    "E2",
    "a fenced producer may add partitions, write and end the transaction",
    (
        Edit(
            ENDING,
            "    if current.successor.producer_epoch != asked.producer_epoch:\n",
            "    if False:\n",
        ),
        Edit(
            "log/producers.py",
            "    if epoch < state.epoch:\n        return ErrorCode.INVALID_PRODUCER_EPOCH  # E2\n",
            "",
        ),
    ),
)
EPOCH_NOT_PERSISTED = Bug(
    "epoch not persisted before the answer",
    "E7",
    "InitProducerId is answered before its record is durable",
    (
        Edit(
            RUNTIME,
            SETTLED,
            f'{CHECKED}        if type(response).__name__ != "InitResult":\n'
            "            await self._settled(loaded)\n"
            "        return response\n",
        ),
    ),
)
DECISION_NOT_PERSISTED = Bug(
    "commit answered before it is durable",
    "E16",
    "EndTxn and CommitTransaction are answered before their record is durable",
    (
        Edit(
            RUNTIME,
            SETTLED,
            f"{CHECKED}        if not isinstance(response, int):\n"
            "            await self._settled(loaded)\n"
            "        return response\n",
        ),
    ),
    ("versioned", "queue", "bank"),
)
BLOCK_NOT_PERSISTED = Bug(
    "pid block not persisted",
    "E7",
    "a block of producer ids is handed out and not stored",
    (
        Edit(
            PRODUCER_IDS,
            "begin = max(value, minimum)\n",
            "begin = max(value, minimum, self._end)\n",
        ),
        Edit(
            PRODUCER_IDS,
            'stored = await self._store.put(KEY, b"%d" % end, expected_version=version)\n',
            "stored = version\n",
        ),
    ),
)
MARKER_BEFORE_DECISION = Bug(
    "marker before the decision is committed",
    "E16",
    "markers are written while a power cut may still erase the decision",
    (
        Edit(SHARD, "            if decided_at < committed\n", "            if True\n"),
        Edit(
            RUNTIME,
            "        self._schedule(loaded)\n        loaded.partition.purgatory.when_committed(\n",
            "        self._schedule(loaded)\n"
            "        self._committed(loaded, None)\n"
            "        loaded.partition.purgatory.when_committed(\n",
        ),
    ),
    ("queue", "bank"),
)
VERSIONED_MARKER_BEFORE_DECISION = Bug(
    "versioned marker before the decision is committed",
    "E16",
    "the same for versioned transactions",
    (
        Edit(VERSIONED, "if at < committed]", "if True]"),
        Edit(
            RUNTIME,
            "        self._schedule(loaded)\n        loaded.partition.purgatory.when_committed(\n",
            "        self._schedule(loaded)\n"
            "        self._committed(loaded, None)\n"
            "        loaded.partition.purgatory.when_committed(\n",
        ),
    ),
    ("versioned",),
)
MARKER_TWICE = Bug(
    "marker twice",
    "E14",
    "a round of markers is sent again after a while, whatever has begun since",
    (
        Edit(
            SENDER,
            "                if stuck:\n                    await asyncio.sleep(RETRY_S)\n",
            "                await asyncio.sleep(RETRY_S)\n"
            "                for piece in work:\n"
            "                    await self._do(loaded, piece)\n",
        ),
    ),
    ("queue-aiokafka", "queue"),
)
COMPLETE_BEFORE_MARKERS = Bug(
    "complete before the markers are committed",
    "E17",
    "a transaction counts as ended while its markers may still be lost",
    (
        Edit(
            SENDER,
            "                await partition.purgatory.committed(end_offset)\n",
            "                await asyncio.sleep(0)\n",
        ),
    ),
    ("versioned", "queue"),
)
MARKERS_FORGOTTEN = Bug(
    "outstanding markers forgotten after a restart",
    "E16",
    "a decision that is replayed owes no markers",
    (
        Edit(
            RUNTIME,
            "        # What ran out by the wall clock while nobody looked is due now.\n",
            '        getattr(loaded.shard, "_decided_at", {}).clear()\n',
        ),
    ),
)
VERSIONED_MARKERS_FORGOTTEN = Bug(
    "versioned markers forgotten after a restart",
    "E16",
    "the same for versioned transactions",
    (
        Edit(
            RUNTIME,
            "        # What ran out by the wall clock while nobody looked is due now.\n",
            '        if hasattr(loaded.shard, "_table"):\n'
            "            loaded.shard._table.decided_at.clear()\n",
        ),
    ),
    ("versioned",),
)
RECOVERY_ABORTS = Bug(
    "recovery aborts what is listed",
    "E17",
    "every transaction that is open after a start is aborted on its partitions",
    (
        Edit(
            "broker/coordinators/orphaned_transactions.py",
            "is not TransactionOutcome.LISTED\n",
            "is not None\n",
        ),
    ),
)
TIMEOUT_AFTER_COMMIT = Bug(
    "timeout not cancelled by commit",
    "E12",
    "a transaction that is decided runs out all the same, and is aborted",
    (
        Edit(
            SHARD,
            "        else:\n            self._deadlines.pop(transactional_id, None)\n",
            "        elif transaction.state is not TxnState.PREPARE_COMMIT:\n"
            "            self._deadlines.pop(transactional_id, None)\n",
        ),
        Edit(
            SHARD,
            "                each.moved(TxnState.PREPARE_ABORT, wall_ms),\n",
            "                each,\n                state=TxnState.PREPARE_ABORT,\n",
        ),
    ),
    ("queue", "bank"),
)
TIMEOUT_KEEPS_EPOCH = Bug(
    "timeout does not fence",
    "E12",
    "a producer whose transaction ran out goes on as if nothing had happened",
    (
        Edit(
            SHARD,
            "producer=each.fenced(),\n",
            "producer=each.producer,\n",
        ),
    ),
    ("queue", "bank"),
)
NO_TIMEOUT = Bug(
    "transactions never time out",
    "E12",
    "what a dead producer left open stays open",
    (
        Edit(
            SHARD,
            "        return min(deadlines if check is None else (*deadlines, check), "
            "default=None)\n",
            "        return check\n",
        ),
    ),
)
STRANGER_COMMITTED = Bug(
    "joined producer not in the open incarnation",
    "V1",
    "a commit names a producer of an aborted incarnation and succeeds",
    (
        Edit(
            VERSIONED,
            "        if not named <= {each.producer_id for each in members}:\n",
            "        if False:\n",
        ),
    ),
    ("versioned",),
)
STALE_RUN = Bug(
    "stale run accepted",
    "V2",
    "an earlier run joins and commits beside the newest one",
    (
        Edit(
            VERSIONED,
            "        if not is_driver and self._table.knows_run(_run_key(caller)):\n",
            "        if False:\n",
        ),
    ),
    ("versioned",),
)
OTHER_CONTENT = Bug(
    "version repeated with other content",
    "V3",
    "a committed version is committed again with another fingerprint",
    (
        Edit(
            VERSIONED,
            "            if fingerprint != arrival.app.fingerprint:\n",
            "            if False:\n",
        ),
    ),
    ("versioned",),
)
VERSION_AGAIN = Bug(
    "committed version written again",
    "V3",
    "a replayed version opens a transaction and is stored twice",
    (
        Edit(
            VERSIONED,
            "        if app.query_id != caller.query_id:\n            app = replace(",
            "        if True:\n            app = replace(",
        ),
    ),
    ("versioned",),
)
EVERY_ATTEMPT_COMMITS = Bug(
    "every attempt commits",
    "V1",
    "a commit takes in attempts that it does not name",
    (Edit(VERSIONED, "commit=each.producer_id in app.committing,", "commit=True,"),),
    ("versioned",),
)
MARKERS_APART = Bug(
    "markers of one transaction apart",
    "V6",
    "the markers of a version on one partition are written one by one",
    (
        Edit(
            SENDER,
            "            outcome = partition.append_markers("
            "markers, now_ms=self._clock.now_ms())\n",
            "            for one in markers[:-1]:\n"
            "                partition.append_markers((one,), now_ms=self._clock.now_ms())\n"
            "                self._flusher.dirty(partition)\n"
            "                await asyncio.sleep(0.02)\n"
            "            outcome = partition.append_markers(\n"
            "                markers[-1:], now_ms=self._clock.now_ms()\n"
            "            )\n",
        ),
    ),
    ("versioned",),
)
NOT_ENLISTED = Bug(
    "enlistment not recorded",
    "V5",
    "a producer writes where the coordinator does not know of it",
    (
        Edit(
            VERSIONED,
            "        if widened == joined.partitions:\n",
            "        if True:\n",
        ),
    ),
    ("versioned",),
)
ENLISTMENT_OUTLIVES = Bug(
    "tombstone of a producer ignored",
    "V5",
    "the producers of an ended incarnation belong to the next one, too",
    (
        Edit(
            TABLE,
            "        known = self.producers.pop(producer_id, None)\n",
            "        known = self.producers.get(producer_id)\n",
        ),
        Edit(TABLE, "        elif known is not None:\n", "        elif False:\n"),
    ),
    ("versioned",),
)

COORDINATOR_BUGS = (
    EPOCH_NOT_CHECKED,
    EPOCH_NOT_PERSISTED,
    DECISION_NOT_PERSISTED,
    BLOCK_NOT_PERSISTED,
    MARKER_BEFORE_DECISION,
    VERSIONED_MARKER_BEFORE_DECISION,
    MARKER_TWICE,
    COMPLETE_BEFORE_MARKERS,
    MARKERS_FORGOTTEN,
    VERSIONED_MARKERS_FORGOTTEN,
    RECOVERY_ABORTS,
    TIMEOUT_AFTER_COMMIT,
    TIMEOUT_KEEPS_EPOCH,
    NO_TIMEOUT,
    STRANGER_COMMITTED,
    STALE_RUN,
    OTHER_CONTENT,
    VERSION_AGAIN,
    EVERY_ATTEMPT_COMMITS,
    MARKERS_APART,
    NOT_ENLISTED,
    ENLISTMENT_OUTLIVES,
)
