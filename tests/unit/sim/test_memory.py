"""From where on a broker may know a log of which retention has deleted the beginning."""

from tests.unit.sim.files import DATA, Files, data


def shortened() -> Files:
    """A log of three files, the first of which retention has deleted."""
    files = Files()
    files.append(DATA, data(1))
    files.append(DATA, data(1, 0, 1), data(2), segment=1)
    files.append(DATA, data(2, 0, 1), segment=3)
    files.log().log_start = 1
    del files.files[files.log().path_of(0)]
    return files


def start(files: Files, knows: dict[int, int] | None = None, *, lost: int = 0) -> bool:
    """Start from a checkpoint; return whether a state of so much by producer is accepted.

    By producer id: the number of its batches that the state tells of. None: read the whole log.
    """
    files.is_rebuilt = knows is None
    files.crash(lost=lost)
    if knows is None:
        return True

    def differs() -> bool:
        known = [each.header.producer_id for each in files.log().batches]
        return {each: known.count(each) for each in sorted(set(known))} != knows

    files.oracle.recall(files.log(), differs)
    return not differs()


def test_a_producer_whose_batches_are_deleted_stays_known() -> None:  # E4, E5
    files = shortened()
    assert start(files, {1: 2, 2: 2})
    assert files.log().ledger.producers[1].next_sequence == 2
    assert files.said == ""


def test_a_start_that_reads_the_whole_log_forgets_and_the_next_one_may_know_it_again() -> None:
    files = shortened()
    start(files)
    assert len(files.log().batches) == 3
    assert start(files, {1: 2, 2: 2})  # from a checkpoint of before
    files.append(DATA, data(1, 0, 2), segment=3)
    assert start(files, {1: 2, 2: 2})  # from a snapshot that the start has written
    assert start(files, {1: 3, 2: 2})
    assert files.said == ""


def test_a_start_that_reads_the_whole_log_knows_what_the_snapshot_before_it_tells() -> None:
    files = shortened()
    files.knows_deleted = True
    start(files)
    assert [each.header.producer_id for each in files.log().batches] == [1, 1, 2, 2]
    files.knows_deleted = False
    start(files)
    assert [each.header.producer_id for each in files.log().batches] == [1, 2, 2]


def test_a_state_that_no_start_had_is_not_accepted() -> None:
    files = shortened()
    assert not start(files, {1: 1, 2: 2})  # nobody has read the whole log yet
    start(files)
    assert not start(files, {2: 2})
    assert not start(files, {1: 2, 2: 1})
    assert len(files.log().batches) == 3


def test_what_is_lost_behind_a_checkpoint_is_lost_and_the_rest_is_known() -> None:
    files = shortened()
    assert start(files, {1: 2, 2: 1}, lost=len(data(2, 0, 1)))
    assert not files.log().knows_less
