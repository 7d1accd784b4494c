"""Bugs on the way to the disk and back: syncs, answers that come too early, recovery."""

from tests.simulation._bug import Bug, Edit

FLUSHER = "broker/partitions/log_flusher.py"
STORE = "storage/partition_store.py"
RECOVER = "storage/recover.py"
PRODUCE = "broker/handlers/produce.py"
REBUILD = "log/rebuild.py"

NO_SYNC = Bug(
    "no fsync on append",
    "D1",
    "an append is acknowledged from the page cache",
    (Edit(FLUSHER, "            await partition.store.sync()\n", "            pass\n"),),
)
ANSWER_BEFORE_SYNC = Bug(
    "answer before the flush",
    "D1",
    "an append is acknowledged while its sync is under way",
    (
        Edit(
            FLUSHER,
            "            self._syncing.add(partition)\n",
            "            self._syncing.add(partition)\n            partition.flushed(end_offset)\n",
        ),
    ),
)
ANSWER_BEFORE_WRITE = Bug(
    "answer before the write",
    "D1",
    "an append is acknowledged 20 ms before it is written",
    (
        Edit(
            FLUSHER,
            "        try:\n            await partition.store.write(tail)\n",
            "        partition.flushed(end_offset)\n"
            "        await asyncio.sleep(0.02)\n"
            "        try:\n"
            "            await partition.store.write(tail)\n",
        ),
    ),
    durability="os",
)
FAILED_SYNC_IGNORED = Bug(
    "failed fsync acknowledged",
    "D2",
    "an append is acknowledged although its sync failed",
    (
        Edit(
            FLUSHER,
            "            await partition.store.sync()\n"
            "        except StorageError as error:\n"
            "            partition.fail(error)\n",
            "            await partition.store.sync()\n"
            "        except StorageError as error:\n"
            "            partition.flushed(end_offset)\n"
            "            partition.fail(error)\n",
        ),
    ),
)
DIRECTORY_NOT_SYNCED = Bug(
    "no fsync of the directory",
    "D1",
    "the name of a new segment is never synced",
    (
        Edit(
            STORE,
            "                await self._sync_names()\n                while self._syncing:\n",
            "                while self._syncing:\n",
        ),
    ),
)
PARENT_NOT_SYNCED = Bug(
    "no fsync of the parent directory",
    "D1",
    "the name of a new partition's directory is never synced",
    (Edit(STORE, "        await disk.sync_directory(parent_of(directory))\n", ""),),
)
FULL_SEGMENT_NOT_SYNCED = Bug(
    "no fsync of a full segment",
    "D3",
    "what a round of writes put at the end of a full segment is never synced",
    (
        Edit(
            STORE,
            "            if full.is_dirty:\n                await self._sync_segment(full)\n",
            "            full.is_dirty = False\n",
        ),
    ),
)
TAIL_NOT_SYNCED = Bug(
    "no fsync of the rewritten tail",
    "D2",
    "recovery serves a tail that it copied and did not sync",
    (Edit(RECOVER, "            await new.sync()\n", ""),),
)
TAIL_NOT_REWRITTEN = Bug(
    "tail not rewritten",
    "D2",
    "recovery serves a tail that only the page cache holds",
    (
        Edit(
            RECOVER,
            "            if end > self.recovery_point or (cut and is_last):\n",
            "            if cut and is_last:\n",
        ),
    ),
)
REWRITTEN_NAME_NOT_SYNCED = Bug(
    "name of the rewritten tail not synced",
    "D2",
    "a power cut brings the file back that recovery had replaced",
    (
        Edit(
            RECOVER,
            "        if copied:\n            await self.disk.sync_directory(self.directory)\n",
            "",
        ),
    ),
)
INDEX_TRUSTED = Bug(
    "index trusted after a crash",
    "D2",
    "side files are taken as they are after an unclean stop, too",
    (
        Edit(
            RECOVER,
            "        if self.clean and self.clean == "
            "await checksum_of(self.disk, self.directory, base_offsets):\n"
            "            loaded = await self._load(base_offsets, epochs)\n"
            "            if loaded is not None:\n",
            "        if True:\n"
            "            loaded = await self._load(base_offsets, epochs)\n"
            "            if loaded is not None:\n"
            "                await self._rewrite(loaded, base_offsets, cut=False)\n",
        ),
        Edit(
            RECOVER,
            "or builder.log_end != self.recovery_point:",
            "or builder.log_end < self.recovery_point:",
        ),
    ),
)
CRC_SKIPPED = Bug(
    "CRC skipped in recovery",
    "D3",
    "a batch whose bytes never all reached the disk is served",
    (
        Edit(
            "storage/segment.py",
            "problem = visit(header, batch, start + at) if check_crc(batch) else",
            "problem = visit(header, batch, start + at) if True else",
        ),
    ),
)
CUT_BELOW_RECOVERY_POINT = Bug(
    "truncation below the recovery point",
    "D3",
    "damage in what was synced is cut away, and what follows it",
    (
        Edit(RECOVER, "        if offset < self._synced:\n", "        if False:\n"),
        Edit(RECOVER, "        if after is not None:\n", "        if False:\n"),
    ),
)
DUPLICATE_BEFORE_HW = Bug(
    "duplicate answered before HW",
    "E4",
    "a repeated batch is acknowledged while its first copy is not durable",
    (
        Edit(
            PRODUCE,
            "    waiting.wait(topic, result, outcome.end_offset, partition)\n",
            "    if isinstance(outcome, Appended):\n"
            "        waiting.wait(topic, result, outcome.end_offset, partition)\n"
            "    else:\n"
            "        waiting.settle(topic, result)\n",
        ),
    ),
)
RETRIES_FORGOTTEN = Bug(
    "recovery forgets what may be retried",
    "E15",
    "after a start a repeated batch is a new one",
    (
        Edit(
            REBUILD,
            "        state.advance_start(min(state.log_start, state.log_end))\n",
            "        state.advance_start(min(state.log_start, state.log_end))\n"
            "        for producer in state.producers.values():\n"
            "            producer.batches.clear()\n"
            "            producer.next_sequence = -1\n",
        ),
    ),
)
LAST_BATCH_DROPPED = Bug(
    "recovery drops the last batch",
    "E15",
    "a batch that ends with the file counts as cut off",
    (Edit("storage/segment.py", "        if size > left:\n", "        if size >= left:\n"),),
)
MARKERS_OVERLOOKED = Bug(
    "recovery overlooks markers",
    "E15",
    "after an unclean stop decided transactions are open again",
    (
        Edit(
            RECOVER,
            "builder.replay(header, _marker(batch) if header.is_control else None, position)",
            "builder.replay(header, None, position)",
        ),
    ),
)
ABORTED_NOT_LOADED = Bug(
    "aborted list lost at a clean stop",
    "E15",
    "after a clean stop nobody knows what full segments hold of aborted transactions",
    (
        Edit(
            REBUILD,
            "        state.transactions.aborted += decode_aborted(side_files.txn_index)\n",
            "",
        ),
    ),
)

STORAGE_BUGS = (
    NO_SYNC,
    ANSWER_BEFORE_SYNC,
    ANSWER_BEFORE_WRITE,
    FAILED_SYNC_IGNORED,
    DIRECTORY_NOT_SYNCED,
    PARENT_NOT_SYNCED,
    FULL_SEGMENT_NOT_SYNCED,
    TAIL_NOT_SYNCED,
    TAIL_NOT_REWRITTEN,
    REWRITTEN_NAME_NOT_SYNCED,
    INDEX_TRUSTED,
    CRC_SKIPPED,
    CUT_BELOW_RECOVERY_POINT,
    DUPLICATE_BEFORE_HW,
    RETRIES_FORGOTTEN,
    LAST_BATCH_DROPPED,
    MARKERS_OVERLOOKED,
    ABORTED_NOT_LOADED,
)
