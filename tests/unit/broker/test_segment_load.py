"""What a broker counts of the writes to a segment: exact totals, and a bounded sample (R3)."""

from random import Random

from fencelog.broker.partitions.segment_load import SAMPLES_MAX, SegmentLoad
from fencelog.coordination.streams.model import HASH_SPACE, SegmentState, StreamSegment
from fencelog.coordination.streams.policy import MedianSample, split_point

SEGMENT = StreamSegment(index=0, low=0, high=HASH_SPACE, state=SegmentState.OPEN)


def test_totals_are_exact_and_keyless_batches_are_in_no_sample() -> None:  # R3
    load = SegmentLoad()
    load.add(3, 100, 7)
    load.add(2, 50, -1)
    assert (load.records, load.bytes) == (5, 150)
    assert load.samples == [MedianSample(7, 3)]
    load.begin_sample()
    assert (load.records, load.bytes, load.samples) == (5, 150, [])


def test_the_sample_is_bounded_and_equal_of_equal_writes() -> None:  # R3
    loads = [SegmentLoad(5), SegmentLoad(5), SegmentLoad(6)]
    for load in loads:
        for number in range(10 * SAMPLES_MAX):
            load.add(1, 10, number)
        assert len(load.samples) == SAMPLES_MAX
    assert loads[0].samples == loads[1].samples != loads[2].samples


def test_a_split_by_the_sample_halves_what_is_written_by_any_pattern_of_writers() -> None:  # R3
    random = Random(1)
    for period in (1, 2, 3, 256):
        load, written = SegmentLoad(period), []
        for number in range(20_000):
            # Every ``period``-th batch is small and high: a sample of each n-th would see one kind.
            high = number % (period + 1) == 0
            hashes = random.randrange(HASH_SPACE // 2) + (HASH_SPACE // 2 if high else 0)
            count = 1 if high else 5
            load.add(count, 100, hashes)
            written.append((hashes, count))
        at = split_point(SEGMENT, load.samples)
        assert at is not None
        below = sum(count for hashes, count in written if hashes < at)
        share = below / sum(count for _, count in written)
        assert 0.4 < share < 0.6, (period, share)


def test_a_sample_tells_of_all_since_it_was_begun_and_not_of_the_last_writes() -> None:  # R3
    load = SegmentLoad()
    for number in range(8_000):
        load.add(1, 10, number)
    early = sum(each.median_hash < 4_000 for each in load.samples)
    assert SAMPLES_MAX * 0.35 < early < SAMPLES_MAX * 0.65
