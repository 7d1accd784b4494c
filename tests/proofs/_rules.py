"""The rules in force, in a sentence each; ``docs/internals/rules.md`` joins them to the faults."""

from tests.support.faults import ROOT, Fault, everything

PAGE = ROOT / "docs/internals/rules.md"
RULES = {
    "D1": "An answer waits for what the mode promises: the sync, or the page cache.",
    "D2": "After a failed write or sync nothing is acknowledged; recovery rewrites and syncs.",
    "D3": "Batches are CRC-checked on arrival and in recovery; damage is named, never cut away.",
    "D4": "Deletion never passes the high watermark, nor compaction the LSO; nothing comes back.",
    "E1": "Sequences count records, per producer and partition, and wrap to 0.",
    "E2": "An older epoch is fenced and writes nothing.",
    "E3": "The next sequence is appended; check and append are one step.",
    "E4": "A stored batch is answered with its first offset, once that is committed.",
    "E5": "A gap is out of order; without state any sequence begins, in version 2 only 0.",
    "E6": "A newer epoch is adopted, with sequence 0 only.",
    "E7": "The older incarnation is fenced, its transaction aborted first; ids are never reused.",
    "E8": "A stale generation or member commits no offset; a pending one is not visible.",
    "E9": "The states are a table; no client writes to internal topics.",
    "E10": "An open transaction holds the LSO back; aborted records are never shown.",
    "E11": "A crash loses and duplicates nothing if output and offsets are in one transaction.",
    "E12": "A transaction past its timeout is aborted under a new epoch.",
    "E13": "A lost response leaves one copy; a batch in flight never overtakes a failed one.",
    "E14": "A delayed request of one transaction never touches the next one.",
    "E15": "Recovery rebuilds producers and transactions from the log alone.",
    "E16": "Markers follow committed decisions only; answers wait for what they reveal.",
    "E17": "A lower coordinator epoch is refused; deleted partitions count as done.",
    "F2": "A record is committed once all in-sync replicas have made it durable.",
    "F5": "A producer waits for the commit (acks=all), or is answered at once.",
    "F6": "A reader sees up to the LSO, the high watermark or the written end, as it asked.",
    "F7": "Leader epochs are stored with the log, and a replica finds the fork by them.",
    "F8": "What is committed survives the end of any one broker, and no watermark goes back.",
    "I1": "No client keeps another waiting for 100 ms, nor takes memory beyond the settings.",
    "V1": "A commit succeeds only if every named producer is in the open incarnation.",
    "V2": "A new run takes over; earlier ones are fenced.",
    "V3": "A repeated version does nothing; another fingerprint, an old or a far one is refused.",
    "V4": "Another query may not use the app unless it takes over.",
    "V5": "A producer is added durably before it writes; its marker drops its state.",
    "V6": "All markers of a transaction on a partition are one append, or none.",
    "V7": "The timeout runs from the last join or renewal; closed connections end it too.",
    "V8": "Versioned transactions have a schema and a topic of their own.",
    "O1": "A live owner is severed by an equal or higher generation; a lower one is refused.",
    "O2": "Generation 0 always succeeds and resets the generation.",
    "O3": "Each grant of a resource in a group has the next epoch, for ever.",
    "O4": "The generation is remembered without an owner; a lower one is stale.",
    "O5": "A claim with another epoch than the current one is fenced before it severs anybody.",
    "O6": "A claim is granted whole, by one record, or refused with the reason.",
    "O7": "All connections of an ended claim are severed: nothing more of them is carried out.",
    "O8": "Only the owner writes; the transactions of older owners end before the grant does.",
    "O9": "A grant is complete when its epochs are raised everywhere; a dead claimant's goes on.",
    "O10": "A claim ends with its lease or its connection; those that wait come in order.",
    "O11": "Nothing of a zombie is stored in any of the four use cases.",
    "R1": "The ranges of a stream's open segments cover every key exactly, after every change.",
    "R2": "A sealed segment takes markers and owners only, and says what it has of a producer.",
    "R3": "A stream is resized on request, and by a policy within its limits and its cool-down.",
    "R4": "An update is stored by who has read all that is there; a repeated one succeeds.",
    "R5": "A group's state is the replay of its updates; positions do not go back.",
    "R6": "An event is one reader's: an offline incarnation changes, commits and reads no more.",
    "R7": "Who has more than its fair share gives one segment away, at its position.",
    "R8": "A successor is readable once all of its predecessors are completed.",
    "R9": "An offline reader's segments go on at its last position, or where somebody says.",
    "R10": "A checkpoint is a stream cut of the whole group, and a reset goes on exactly there.",
    "R11": "Readers read on what they own while the state cannot be reached.",
    "S1": "The columns are those of Spark's Kafka connector, in pure Python.",
    "S2": "A replay sees the same input; a write returns when all is acknowledged.",
    "S3": "A batch is one transaction; a repeated batch writes nothing.",
    "S4": "An attempt that the commit does not name is aborted.",
    "S5": "A second driver fences the first.",
    "S6": "Progress is a consumer group's; lost records stop the query.",
    "S7": "The same job runs locally and on a cluster.",
    "S9": "A topic that was deleted and created again is another topic: its records are lost.",
}

# Rules that are seen to hold by a test, without a line that one could take out by itself.
SEEN = {
    "E11": [
        "tests/proofs/test_orders.py::"
        "test_a_crash_within_a_transaction_neither_duplicates_nor_loses_records"
    ],
    "E15": [
        "tests/unit/storage/test_recovery.py::test_side_files_are_not_trusted_after_an_unclean_stop"
    ],
    "O11": [
        f"tests/clients/test_ownership_examples.py::{test}"
        for test in (
            "test_a_store_has_all_that_was_stored_and_nothing_of_its_zombies",
            "test_rows_of_sqlite_are_published_in_order_through_a_zombie",
            "test_a_reader_that_was_taken_over_commits_nothing",
            "test_a_task_goes_on_exactly_after_its_journal_and_an_older_attempt_adds_nothing",
        )
    ],
    "S1": ["tests/spark/test_batch.py::test_the_columns_are_those_of_sparks_kafka_connector"],
    "S2": [
        "tests/spark/test_crashes.py::test_no_kill_of_a_driver_or_task_loses_or_duplicates_a_record"
    ],
    "S6": [
        "tests/spark/test_stream.py::test_a_topic_that_was_created_again_stops_the_stream_or_is_read_from_its_beginning"
    ],
    "S7": ["tests/spark/test_crashes.py::test_a_killed_executor_changes_nothing"],
}


def table() -> list[str]:
    """The rows that join rules, the faults that break them, and who finds those."""
    faults = everything()
    lines = ["| rule | says | fault | in | found by |", "|---|---|---|---|---|"]
    for rule, says in RULES.items():
        rows = [_row(each) for each in faults if rule in each.rules]
        rows += [f" | | `{test}` |" for test in SEEN.get(rule, [])]
        for number, row in enumerate(rows):
            lines.append(f"| **{rule}** | {says} | {row}" if number == 0 else f"| | | {row}")
    return lines


def _row(fault: Fault) -> str:
    files = ", ".join(f"`{each.removeprefix('src/fencelog/')}`" for each in fault.files)
    kinds = dict.fromkeys(each.kind for each in fault.finders if each.kind != "test")
    finders = ", ".join([*(f"`{test}`" for test in fault.arguments("test")), *kinds])
    patch = f"[{fault.name}](../../tests/faults/{fault.name}.patch)"
    return f"{patch} | {files} | {finders} |"


def tests_named() -> set[str]:
    """Every test that a rule or a fault names."""
    of_faults = {test for each in everything() for test in each.arguments("test")}
    return of_faults.union(*SEEN.values())
