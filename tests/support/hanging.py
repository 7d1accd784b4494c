"""Makes a transaction that hangs: data of a producer on a partition, and no coordinator lists it.

The broker verifies before it appends (E14), so no client can do this. It is written past the
verification, as a broker before KIP-890 would have let it through.
"""

from fencelog.log.values import Appended
from fencelog.node import Node
from fencelog.wire.batch import read_header
from tests.support.node import batch


async def hang(
    node: Node,
    topic: str,
    producer_id: int,
    *,
    epoch: int = 0,
    sequence: int = 0,
    partition: int = 0,
) -> int:
    """Append one record in a transaction that no coordinator knows; return its offset."""
    found = node.broker.logs.get(topic, partition)
    assert found is not None
    sent = memoryview(
        batch("hangs", producer_id=producer_id, epoch=epoch, sequence=sequence, transactional=True)
    )
    guard = found.log.begin_verification(producer_id, epoch, sequence)
    now_ms = node.broker.clock.now_ms()
    outcome = found.log.append(sent, read_header(sent), now_ms=now_ms, guard=guard)
    assert isinstance(outcome, Appended), outcome
    node.flusher.enqueue(found)
    await found.committed(outcome.end_offset)
    return outcome.base_offset
