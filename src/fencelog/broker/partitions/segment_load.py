"""What is written to one segment of a stream: how much, and which hashes (R3).

The broker reads no records (ADR 4), so a writer says with each batch the median of its hashes. A
split that halves what is written needs the median of all: a sample of batches, each counted by its
records, is near enough. The sample is uniform over the batches since it was begun, and bounded.
"""

from fencelog.coordination.streams.policy import MedianSample

SAMPLES_MAX = 256
"""The error of a median of so many batches is about 3 % of what is written."""
_MULTIPLIER, _INCREMENT, _MASK = 6364136223846793005, 1442695040888963407, (1 << 64) - 1


class SegmentLoad:
    """Counts what is appended to one segment by this broker; nothing of it is stored.

    Attributes:
        records: records appended since the first write; it never goes back.
        bytes: bytes of their batches, as they are stored.
        samples: the medians of a part of the batches that have keys, with their records.
    """

    __slots__ = ("_random", "_seen", "bytes", "records", "samples")

    def __init__(self, seed: int = 0) -> None:
        """Nothing was written yet. Of equal seeds and batches the sample is equal."""
        self.records = 0
        self.bytes = 0
        self.samples: list[MedianSample] = []
        self._seen = 0
        self._random = seed

    def add(self, records: int, size: int, median_hash: int) -> None:
        """Count a batch of so many bytes; ``median_hash`` is -1 where no record has a key."""
        self.records += records
        self.bytes += size
        if median_hash < 0:
            return
        self._seen += 1
        sample = MedianSample(median_hash, records)
        if len(self.samples) < SAMPLES_MAX:
            self.samples.append(sample)
            return
        # Each batch seen is in the sample with the same chance. The higher bits of a linear
        # congruential generator are random enough, whatever period the writers have.
        self._random = (self._random * _MULTIPLIER + _INCREMENT) & _MASK
        place = (self._random >> 32) * self._seen >> 32
        if place < SAMPLES_MAX:
            self.samples[place] = sample

    def begin_sample(self) -> None:
        """Forget the sample: what was written before tells nothing of the next decision."""
        self.samples = []
        self._seen = 0
