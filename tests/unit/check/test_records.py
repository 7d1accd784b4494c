"""Lost, torn, duplicate, aborted and phantom records: each alone, and a similar clean case."""

from tests.unit.check.writing import Written, poll, send, who


def test_an_acknowledged_record_that_readers_went_past_is_lost() -> None:
    h = Written()
    lost = h.ok("w", send("x", "a", 0))
    h.ok("w", send("x", "b", 1))
    past = h.ok("r", poll(x=[(1, "b")]))
    finding = h.only("lost-write")
    assert (finding.key, finding.offsets, finding.values) == ("x", (0,), ("a",))
    assert who(finding) == [("w", lost), ("r", past)]


def test_an_acknowledged_record_past_all_readers_is_unread_without_final_readers() -> None:
    h = Written()
    h.ok("w", send("x", "a", 0), send("x", "b", 1))
    h.ok("r", poll(x=[(0, "a")]))
    assert h.verdict().valid
    assert h.verdict().found == {"unread": 1}


def test_a_reader_that_was_sent_behind_a_record_does_not_show_it_lost() -> None:
    h = Written()
    h.ok("w", send("x", "a", 0))
    h.ok("w", send("x", "b", 1))
    h.reset("r")
    h.ok("r", poll(x=[(1, "b")]))
    assert h.verdict().valid
    assert h.verdict().found == {"unread": 1}


def test_a_reader_that_was_sent_somewhere_and_reads_on_shows_what_is_lost() -> None:
    h = Written()
    for offset, value in enumerate("abcd"):
        h.ok("w", send("x", value, offset))
    h.reset("r")
    h.ok("r", poll(x=[(1, "b")]))
    h.ok("r", poll(x=[(3, "d")]))
    assert h.verdict().found == {"lost-write": 1, "poll-skip": 1, "unread": 1}


def test_an_acknowledged_record_that_no_final_reader_reached_is_unseen() -> None:
    h = Written()
    op = h.ok("w", send("x", "a", 0), send("x", "b", 1))
    h.ok("final", poll(x=[(0, "a")]))
    h.ends(x=(0, 2, 2, 2))
    finding = h.only("unseen")
    assert (finding.values, who(finding)) == (("b",), [("w", op)])


def test_what_was_seen_once_is_lost_if_final_readers_go_past_without_it() -> None:
    h = Written()
    h.ok("w", send("x", "a", 0), send("x", "b", 1), send("x", "c", 2))
    h.ok("r", poll(x=[(0, "a"), (1, "b"), (2, "c")]))
    h.ok("final", poll(x=[(0, "a")]))
    h.reset("final")
    h.ok("final", poll(x=[(2, "c")]))
    finding = h.only("lost-write")
    assert finding.values == ("b",)
    assert "was seen at 1" in finding.text


def test_an_acknowledged_tail_that_the_log_no_longer_has_is_lost() -> None:
    h = Written()
    h.ok("w", send("x", "a", 0), send("x", "b", 1))
    h.ok("final", poll(x=[(0, "a")]))
    h.ends(x=(0, 1, 1, 1))
    assert "log ends at 1" in h.only("lost-write").text


def test_a_tail_that_was_seen_and_is_cut_away_is_lost_even_without_final_readers() -> None:
    h = Written()
    h.ok("w", send("x", "a", 0))
    h.unknown("w", send("x", "b"))
    h.ok("r", poll(x=[(0, "a"), (1, "b")]))
    h.ends(x=(0, 1, 1, 1))
    assert h.only("lost-write").values == ("b",)


def test_what_retention_deleted_is_not_lost() -> None:
    h = Written()
    h.ok("w", send("x", "a", 0), send("x", "b", 1))
    h.ok("final", poll(x=[(1, "b")]))
    h.ends(x=(1, 2, 2, 2))
    assert h.verdict().valid


def test_a_send_without_a_known_end_may_be_missing() -> None:
    h = Written()
    h.unknown("w", send("x", "a"))
    h.begin("v", send("x", "b"))
    h.ok("w", send("x", "c", 1))
    h.ok("final", poll(x=[(1, "c")]))
    assert h.verdict().valid


def test_one_visible_record_of_a_transaction_proves_that_it_committed() -> None:
    h = Written()
    torn = h.unknown("w", send("x", "a", 0), send("y", "b", 0), txn=True)
    h.ok("v", send("y", "c", 1))
    seen = h.ok("r", poll(x=[(0, "a")]))
    past = h.ok("s", poll(y=[(1, "c")]))
    finding = h.only("torn-transaction")
    assert who(finding) == [("w", torn), ("r", seen), ("s", past)]
    assert finding.values == ("a", "b")


def test_without_that_proof_a_transaction_without_a_known_end_has_no_missing_records() -> None:
    h = Written()
    h.unknown("w", send("x", "a", 0), send("y", "b", 0), txn=True)
    h.ok("v", send("y", "c", 1))
    h.ok("s", poll(y=[(1, "c")]))
    assert h.verdict().valid


def test_sends_outside_a_transaction_prove_nothing_of_each_other() -> None:
    h = Written()
    h.unknown("w", send("x", "a"), send("y", "b"))
    h.ok("final", poll(x=[(0, "a")]))
    h.ok("v", send("y", "c", 1))
    h.ok("final", poll(y=[(1, "c")]))
    assert h.verdict().valid


def test_a_missing_record_of_a_proven_transaction_may_be_anywhere_without_its_offset() -> None:
    h = Written()
    h.unknown("w", send("x", "a"), send("y", "b"), txn=True)
    h.ok("v", send("y", "c", 1))
    h.ok("r", poll(x=[(0, "a")], y=[(1, "c")]))
    assert h.verdict().valid


def test_a_crashed_transaction_that_final_readers_see_in_part_is_torn() -> None:
    h = Written()
    h.begin("w", send("x", "a"), send("y", "b"), txn=True)
    h.ok("v", send("y", "c", 0))
    h.ok("final", poll(x=[(0, "a")], y=[(0, "c")]))
    finding = h.only("torn-transaction")
    assert "offset is unknown" in finding.text
    assert finding.counterexample[0].completed is None


def test_a_committed_transaction_that_is_wholly_gone_is_lost_and_not_torn() -> None:
    h = Written()
    h.ok("w", send("x", "a", 0), send("y", "b", 0), txn=True)
    h.ok("v", send("x", "c", 1), send("y", "d", 1))
    h.ok("r", poll(x=[(1, "c")], y=[(1, "d")]))
    assert h.kinds() == {"lost-write": 2}


def test_a_visible_record_of_a_failed_operation_is_an_aborted_read() -> None:
    h = Written()
    writer = h.failed("w", send("x", 2), send("y", 3), txn=True)
    reader = h.ok("r", poll(x=[(0, 2)]))
    finding = h.only("aborted-read")
    assert who(finding) == [("w", writer), ("r", reader)]


def test_a_reader_whose_own_transaction_fails_must_not_be_shown_aborted_records_either() -> None:
    h = Written()
    h.failed("w", send("x", 2), txn=True)
    h.failed("r", poll(x=[(0, 2)]), txn=True)
    h.only("aborted-read")


def test_a_value_at_two_offsets_is_a_duplicate() -> None:
    h = Written()
    writer = h.ok("w", send("x", "a", 0), send("x", "b", 1))
    reader = h.ok("r", poll(x=[(0, "a"), (1, "b"), (2, "a")]))
    h.ok("s", poll(x=[(0, "a"), (1, "b"), (2, "a")]))
    finding = h.only("duplicate")
    assert who(finding) == [("w", writer), ("r", reader), ("r", reader)]
    assert (finding.offsets, finding.values) == ((0, 2), ("a",))


def test_a_value_acknowledged_at_one_offset_and_read_at_another_is_a_duplicate() -> None:
    h = Written()
    h.ok("w", send("x", "a", 1))
    h.unknown("v", send("x", "b"))
    h.ok("r", poll(x=[(2, "b"), (3, "a")]))
    assert h.first("duplicate").offsets == (1, 3)


def test_a_duplicate_that_final_readers_see_at_one_of_its_offsets_is_not_lost() -> None:
    h = Written()
    h.ok("w", send("x", "a"), send("x", "b", 4))
    h.ok("r", poll(x=[(2, "a")]))
    h.ok("final", poll(x=[(3, "a"), (4, "b")]))
    assert h.kinds() == {"duplicate": 1, "poll-skip": 1}


def test_two_values_polled_at_one_offset_are_inconsistent() -> None:
    h = Written()
    h.ok("w", send("x", "a"), send("x", "b"))
    first = h.ok("r", poll(x=[(0, "a")]))
    second = h.ok("s", poll(x=[(0, "b")]))
    finding = h.first("inconsistent-offset")
    assert who(finding) == [("r", first), ("s", second)]
    assert finding.values == ("a", "b")


def test_an_offset_acknowledged_to_two_senders_is_inconsistent() -> None:
    h = Written()
    h.ok("w", send("x", 641, 537))
    h.ok("v", send("x", 645, 537))
    h.ok("r", poll(y=[]))
    finding = h.only("inconsistent-offset")
    assert (finding.offsets, set(finding.values)) == ((537,), {641, 645})


def test_a_value_acknowledged_at_the_offset_of_another_is_lost() -> None:
    h = Written()
    h.ok("w", send("x", "a", 0))
    h.ok("v", send("x", "b", 0), send("x", "c", 2))
    h.ok("r", poll(x=[(0, "b"), (2, "c")]))
    assert h.kinds() == {"inconsistent-offset": 1, "lost-write": 1}


def test_a_value_that_no_client_sent_is_a_phantom() -> None:
    h = Written()
    h.ok("w", send("x", "a", 0), send("y", "b", 0))
    h.ok("r", poll(x=[(0, "a"), (1, "b")], y=[(0, "b")]))
    finding = h.only("phantom")
    assert finding.key == "x"
    assert "it was sent to y" in finding.text


def test_a_record_that_is_seen_before_it_is_sent_was_read_too_early() -> None:
    h = Written()
    reader = h.ok("r", poll(x=[(0, "a")]))
    writer = h.ok("w", send("x", "a", 0))
    finding = h.only("precommitted-read")
    assert who(finding) == [("w", writer), ("r", reader)]


def test_a_record_that_is_seen_before_its_commit_was_asked_for_was_read_too_early() -> None:
    def history(*, asks_first: bool) -> Written:
        h = Written()
        op = h.begin("w", send("x", "a"), txn=True)
        if asks_first:
            h._add("committing", "w", id=op)
        h.ok("r", poll(x=[(0, "a")]))
        if not asks_first:
            h._add("committing", "w", id=op)
        h.end("ok", "w", op, send("x", "a", 0))
        return h

    assert "commit was asked for" in history(asks_first=False).only("precommitted-read").text
    assert history(asks_first=True).verdict().valid


def test_a_transaction_has_read_before_its_own_commit_is_asked_for() -> None:
    h = Written()
    writer = h.begin("w", send("x", "a"), txn=True)
    reader = h.begin("r", send("y", "b"), txn=True)
    h._add("committing", "r", id=reader)
    h._add("committing", "w", id=writer)
    h.end("ok", "w", writer, send("x", "a", 0))
    h.end("ok", "r", reader, send("y", "b", 0), poll(x=[(0, "a")]))
    h.only("precommitted-read")


def test_a_commit_that_is_asked_for_again_counts_from_the_first_time() -> None:
    h = Written()
    writer = h.begin("w", send("x", "a"), txn=True)
    h._add("committing", "w", id=writer)
    h.ok("r", poll(x=[(0, "a")]))
    h._add("committing", "w", id=writer)
    h.end("ok", "w", writer, send("x", "a", 0))
    assert h.verdict().valid


def test_a_poll_that_ends_as_the_commit_is_asked_for_is_not_too_early() -> None:
    h = Written()
    writer = h.begin("w", send("x", "a"), txn=True)
    h.ok("r", poll(x=[(0, "a")]))
    h.events.append({**h.events[-1], "type": "committing", "process": "w", "id": writer})
    del h.events[-1]["steps"]
    h.end("ok", "w", writer, send("x", "a", 0))
    assert h.verdict().valid


def test_a_transaction_that_sees_its_own_records_reads_too_early() -> None:
    h = Written()
    op = h.ok("w", send("x", "a", 0), poll(x=[(0, "a")]), txn=True)
    assert who(h.only("precommitted-read")) == [("w", op)]


def test_outside_a_transaction_a_client_may_see_what_it_sent() -> None:
    h = Written()
    h.ok("w", send("x", "a", 0), poll(x=[(0, "a")]))
    assert h.verdict().valid


def test_of_many_findings_of_a_kind_some_are_kept_and_all_are_counted() -> None:
    h = Written()
    h.ok("w", *(send("x", n, n) for n in range(100)))
    h.ok("r", poll(x=[(99, 99)]))
    verdict = h.verdict()
    assert verdict.found == {"lost-write": 99}
    assert len(verdict.problems) == 20
