"""What a writer knows of a stream's ranges, answer by answer (R1, R2)."""

from fencelog.client.streams.ranges import Ranges
from fencelog.coordination.streams.model import HASH_SPACE
from fencelog.types import TopicId
from fencelog.wire.hot import Successor

ID = TopicId(bytes(16))
QUARTER, HALF = HASH_SPACE // 4, HASH_SPACE // 2
FIRST = Successor(0, 0, QUARTER)
REST = Successor(1, QUARTER, HASH_SPACE)


def test_a_successor_that_leaves_a_gap_is_known_by_its_range_and_covers_nothing() -> None:  # R2
    ranges = Ranges(ID, (FIRST, REST), {0: FIRST, 1: REST})
    # Segment 1 was split at the half meanwhile, and its first part merged with segment 0.
    merged = Successor(4, 0, HALF)
    learned = ranges.with_newer([merged])
    assert learned.covering == (FIRST, REST)
    assert learned.known[4] == merged
    parts = [Successor(2, QUARTER, HALF), Successor(3, HALF, HASH_SPACE)]
    assert learned.with_newer([*parts, merged]).covering == (merged, parts[1])
