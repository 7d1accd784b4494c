"""Bugs in compaction, retention and the deletion of records; in starts that are struck."""

from tests.simulation._bug import Bug, Edit

COMPACTION = "log/compaction.py"
STORE = "storage/partition_store.py"
FILES = "storage/compaction.py"
RECOVER = "storage/recover.py"
STARTS = "broker/partitions/log_starts.py"
PARTITION_LOG = "log/partition_log.py"
KEYED = ("keyed", "copy")
COPY = ("copy", "keyed")

CLEANING_BUGS: tuple[Bug, ...] = (
    Bug(
        "older record survives",
        "D4",
        "compaction keeps the first record of a key that it meets, not the newest",
        (
            Edit(
                COMPACTION,
                "                    self.newest[_digest(record.key)] = Offset(\n"
                "                        header.base_offset + record.offset_delta\n"
                "                    )\n",
                "                    self.newest.setdefault(\n"
                "                        _digest(record.key),\n"
                "                        Offset(header.base_offset + record.offset_delta),\n"
                "                    )\n",
            ),
            Edit(
                COMPACTION,
                "offset < self._newest.get(_digest(record.key), -1)",
                "offset > self._newest.get(_digest(record.key), 1 << 62)",
            ),
        ),
        KEYED,
    ),
    Bug(
        "aborted records supersede",
        "D4",
        "a record of an aborted transaction takes the older one of its key along",
        (
            Edit(
                COMPACTION,
                "if not header.is_control and not _is_aborted(self._transactions, header):\n",
                "if not header.is_control:\n",
            ),
        ),
        KEYED,
    ),
    Bug(
        "tombstones go at once",
        "D4",
        "a tombstone is dropped by the first round that sees it",
        (
            Edit(
                COMPACTION,
                "        return record.has_value or not self._has_passed(header)\n",
                "        return record.has_value\n",
            ),
        ),
        KEYED,
    ),
    Bug(
        "markers go at once",
        "D4",
        "a marker of which nothing else is left is dropped by the first round that sees it",
        (
            Edit(
                COMPACTION,
                "        if delete_horizon(header) is None:\n            plain, records",
                "        if False:\n            plain, records",
            ),
            Edit(
                COMPACTION,
                "        return None if self._has_passed(header) else batch\n",
                "        return None\n",
            ),
        ),
        COPY,
    ),
    Bug(
        "markers go before their records",
        "D4",
        "a marker is dropped while records of its transaction are still there",
        (
            Edit(
                COMPACTION,
                "            self._open.discard(producer_id)\n            return batch\n",
                "            self._open.discard(producer_id)\n"
                "            return batch if is_last else None\n",
            ),
        ),
        COPY,
    ),
    Bug(
        "compaction passes the LSO",
        "D4",
        "records of transactions that are still open are compacted",
        (
            Edit(
                PARTITION_LOG,
                "min(self.last_stable_offset, ",
                "min(self.high_watermark, ",
            ),
        ),
        KEYED,
    ),
    Bug(
        "producers are compacted away",
        "D4, E15",
        "the last batch of a producer goes like any other",
        (
            Edit(
                COMPACTION,
                "must_stay = is_last or self._is_last_of_producer(header)",
                "must_stay = is_last",
            ),
        ),
        KEYED,
    ),
    Bug(
        "compacted file not synced",
        "D4, D3",
        "a compacted file takes its place before its bytes are stable",
        (
            Edit(
                FILES,
                "                await file.sync()\n                is_whole = True\n",
                "                is_whole = True\n",
            ),
        ),
        KEYED,
    ),
    Bug(
        "names of a swap not synced",
        "D4",
        "no name of a swap is synced: the compacted file may go, and what it stands for stay away",
        (
            Edit(
                STORE,
                "        await self._disk.rename(path + layout.CLEANED, path + layout.SWAP)\n"
                "        await self._disk.sync_directory(self._directory)\n",
                "        await self._disk.rename(path + layout.CLEANED, path + layout.SWAP)\n",
            ),
            Edit(
                STORE,
                "            # None of them may come back beside a file that stands for it.\n"
                "            await self._disk.sync_directory(self._directory)\n",
                "            pass\n",
            ),
            Edit(
                STORE,
                "        await self._disk.rename(path + layout.SWAP, path)\n"
                "        await self._disk.sync_directory(self._directory)\n",
                "        await self._disk.rename(path + layout.SWAP, path)\n",
            ),
        ),
        KEYED,
    ),
    Bug(
        "swap races the log start",
        "D4",
        "what retention takes while a compacted file gets its name is taken for there",
        (
            Edit(
                STORE,
                "        if not self._log.has_segments(cleaned.replaced):\n"
                "            # The log's start",
                "        if False:\n            # The log's start",
            ),
        ),
        ("keyed",),
    ),
    Bug(
        "LSO left behind by a deletion",
        "D4",
        "the log start passes the first record of an open transaction, and the LSO stays there",
        (
            Edit(
                PARTITION_LOG,
                "del state.segments[: len(gone)]\n        self._move_last_stable_offset()\n",
                "del state.segments[: len(gone)]\n",
            ),
        ),
        ("keyed",),
    ),
    Bug(
        "log start seen before it is stored",
        "D4",
        "readers are told of a log start that a crash takes back",
        (
            Edit(
                STARTS,
                "    if ready:\n",
                "    for partition, start in ready.items():\n"
                "        partition.log.advance_start(start)\n"
                "    if ready:\n",
            ),
        ),
        ("keyed",),
    ),
    Bug(
        "log start not stored",
        "D4",
        "records are deleted before the new log start is on disk",
        (
            Edit(
                STARTS,
                "    if ready:\n",
                "    if False:\n",
            ),
        ),
        ("keyed",),
    ),
    Bug(
        "producers of deleted records forgotten",
        "E4",
        "a clean start with one segment reads no snapshot",
        (
            Edit(
                RECOVER,
                "            if base_offsets[-1] > 0:\n",
                "            if len(base_offsets) > 1:\n",
            ),
        ),
        ("keyed",),
    ),
    Bug(
        "names of a killed run not synced",
        "D1",
        "a start goes on with directories that a killed run has made and not synced",
        (
            Edit(
                "storage/directory.py",
                '        await disk.sync_directory("")\n        cluster_id',
                "        cluster_id",
            ),
        ),
        ("queue", "copy", "keyed"),
    ),
)
