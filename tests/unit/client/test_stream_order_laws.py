"""Per key the stored order is the sent order, each record once, whatever a stream goes through."""

import asyncio
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from fencelog.client.sender import ProducerOptions
from fencelog.coordination.streams import rules
from fencelog.errors import ErrorCode
from tests.unit.client.stream_world import TOPIC, Stored, World, Writer, played, steps

KEYS = [b"k%d" % number for number in range(6)]
RETRIABLE = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS)
CODECS = ("none", "zstd")
Step = tuple[str, int]
SENDING = ("send", "send-and-take", "send-and-take", "take")
ARRIVING = ("arrive", "arrive", "arrive", "lose", "late", "refuse")
RESIZING = ("split", "split", "merge", "seal", "seal", "resize")
OTHERS = ("wait", "forget", "behind")
STEPS = st.lists(
    st.tuples(st.sampled_from(SENDING + ARRIVING + RESIZING + OTHERS), st.integers(0, 1 << 16)),
    min_size=10,
    max_size=60,
)


async def do(world: World, writer: Writer, step: Step) -> None:
    """One step. A number chooses among what there is."""
    what, number = step
    if what.startswith("send"):
        keys: list[bytes | None] = [*KEYS, None]
        await writer.add(*[keys[(number >> at) % len(keys)] for at in range(0, 16, 4)])
    if what.endswith("take"):
        await writer.sender.enqueue(writer.buffer.take())
    elif what == "wait":
        await asyncio.sleep((number % 100) / 100)
    elif what in RESIZING:
        resize(world, what, number)
    else:
        answer(world, what, number)
    await steps(number % 7)


def resize(world: World, what: str, number: int) -> None:
    """One step of a resize, if there is one to do."""
    assert world.stream is not None
    covering, unsealed = world.stream.covering, rules.unsealed(world.stream)
    place = number % len(covering)
    if what == "split":
        world.begin(rules.split(world.stream, covering[place].index))
    elif what == "merge":
        pair = covering[place : place + 2]
        world.begin(rules.merge(world.stream, [each.index for each in pair]))
    elif unsealed:
        place = number % len(unsealed)
        for index in unsealed if what == "resize" else unsealed[place : place + 1]:
            world.seal(index)


def answer(world: World, what: str, number: int) -> None:
    """What the broker and the network do."""
    if what == "arrive":
        for _ in range(1 + number % 3):
            world.arrive()
    elif what == "lose":
        for _ in range(number % 4):
            world.arrive(is_answered=False)
        world.line.close()
    elif what == "late":
        world.arrive_late()
    elif what == "refuse":
        world.refuse.append(RETRIABLE[number % len(RETRIABLE)])
    elif what == "forget":
        world.cluster.forget(TOPIC)
    else:
        world.behind = number % 3


async def finish(world: World, writer: Writer) -> None:
    """Complete every resize and let everything arrive."""
    world.is_prompt = True
    world.refuse.clear()
    while world.stream is not None and (unsealed := rules.unsealed(world.stream)):
        world.seal(unsealed[0])
    while world.arrive():
        pass
    await writer.sender.enqueue(writer.buffer.take())


def stored_once(world: World, writer: Writer) -> None:
    for key in KEYS:
        assert world.order_of(key) == writer.sent[key]
    assert world.stream is not None
    keyless = [
        number
        for segment in world.stream.segments
        for key, number in world.rows(segment.index)
        if key is None
    ]
    assert sorted(keyless) == writer.sent[None]
    for log in world.logs.values():
        assert all(batch.first == 0 for batch in firsts(log.batches))


def firsts(batches: list[Stored]) -> list[Stored]:
    """The first batch of each producer."""
    return list({each.producer: each for each in reversed(batches)}.values())


@given(STEPS, st.integers(1, 3), st.sampled_from(CODECS), st.booleans(), st.integers(0, 99))
@settings(deadline=None, max_examples=100)
def test_each_key_is_stored_in_the_order_in_which_it_was_sent_and_once(  # R2
    script: list[Step], segments: int, codec: Any, knows: bool, seed: int
) -> None:
    async def story() -> None:
        world = World(segments)
        world.sealed_know_duplicates = knows
        writer = await Writer.open(world, ProducerOptions(compression=codec))
        world.is_prompt = False
        for step in script:
            await do(world, writer, step)
        await finish(world, writer)
        deliveries = await writer.sender.flush()
        stored_once(world, writer)
        sent = sum(len(each) for each in writer.sent.values())
        assert sum(each.count for each in deliveries) == sent
        await writer.sender.close()

    played(story(), str(seed))


GIVEN_ON_AT_THE_END: list[Step] = [
    ("resize", 0),
    ("send", 1332),
    ("send-and-take", 0),
    ("split", 1969),
    ("seal", 0),
    *[("send", 0)] * 4,
    ("arrive", 0),
    *[("send", 0)] * 4,
]
"""A sender gives a batch to a successor while the abort stops the senders."""


@given(
    st.lists(st.tuples(STEPS, st.booleans()), min_size=1, max_size=3),
    st.integers(1, 3),
    st.integers(0, 99),
)
@settings(deadline=None, max_examples=40)
@example([(GIVEN_ON_AT_THE_END, False), ([("send", 0)] * 10, True)], 3, 0)
def test_what_transactions_commit_is_in_order_and_once_and_what_they_abort_is_gone(  # R2, E10
    transactions: list[tuple[list[Step], bool]], segments: int, seed: int
) -> None:
    async def story() -> None:
        world = World(segments)
        writer = await Writer.open(world, ProducerOptions(transactional_id="x"))
        for script, commits in transactions:
            before = {key: list(numbers) for key, numbers in writer.sent.items()}
            await writer.sender.begin()
            world.is_prompt = False
            for step in script:
                await do(world, writer, step)
            if commits:
                await finish(world, writer)
                await writer.sender.flush()
            else:
                world.refuse.clear()
                writer.buffer.take()
                writer.sent.update({key: before.get(key, []) for key in writer.sent})
            await writer.sender.end(commit=commits)
        world.is_prompt = True
        await writer.sender.close()
        for key in KEYS:
            assert world.order_of(key) == writer.sent[key]

    played(story(), str(seed))
