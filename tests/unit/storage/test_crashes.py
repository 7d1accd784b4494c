"""Power cuts at every disk operation: what was acknowledged is always there again (E15)."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencelog.errors import CorruptionError
from fencelog.storage.writeback import WritebackLimits
from fencelog_sim.world.disk import Loss, SimDisk
from tests.support.storage import AT_EACH_WRITE, LOSSES
from tests.unit.storage.machine import History, Machine, live

PRODUCERS = (11, 12)
GROUPS = (None, "a", "b")


async def busy_life(machine: Machine) -> None:
    """Everything a run has: rolls, transactions, owners, checkpoints, a seal, a clean stop."""
    await machine.start()
    for number in range(8):
        machine.append(300)
        machine.append_transactional(PRODUCERS[number % 2])
        await machine.flush()
        if number % 2:
            machine.set_owner(GROUPS[number % 3])
        if number % 3 == 2:
            machine.end_transaction(PRODUCERS[0], commit=number == 2)
            await machine.write()
            await machine.checkpoint()
    machine.seal()
    await machine.flush()
    machine.set_owner(None)
    await machine.stop()


async def start_only(machine: Machine) -> None:
    await machine.start()


def operations_of(*programs, limits: WritebackLimits | None = None) -> int:
    """How many disk operations the last of these runs takes."""
    disk, history = SimDisk(operations=[]), History("fsync", limits)
    for program in programs:
        disk.operations.clear()
        assert live(disk, history, program, None)
    return len(disk.operations)


LIMITS = pytest.mark.parametrize("limits", [None, AT_EACH_WRITE], ids=["plain", "checkpoints"])


@LIMITS
@LOSSES
def test_a_power_cut_at_any_operation_of_a_first_life_loses_nothing(
    loss: Loss, limits: WritebackLimits | None
) -> None:  # E15
    for cut in range(0, operations_of(busy_life, limits=limits), 2 if limits else 1):
        disk, history = SimDisk(), History("fsync", limits)
        assert not live(disk, history, busy_life, cut)
        after = disk.power_loss(loss, Random(cut))
        assert live(after, history, busy_life, None)


@LOSSES
def test_a_power_cut_at_any_operation_of_a_later_life_loses_nothing(loss: Loss) -> None:  # E15
    for cut in range(0, operations_of(busy_life, busy_life), 3):
        disk, history = SimDisk(), History("fsync")
        assert live(disk, history, busy_life, None)
        assert not live(disk, history, busy_life, cut)
        after = disk.power_loss(loss, Random(cut))
        assert live(after, history, start_only, None)


@LIMITS
@LOSSES
def test_a_power_cut_at_any_operation_of_recovery_loses_nothing(
    loss: Loss, limits: WritebackLimits | None
) -> None:  # D2
    first_cut = operations_of(busy_life, limits=limits) * 3 // 4
    cut, finished = 0, False
    while not finished:
        disk, history = SimDisk(), History("fsync", limits)
        assert not live(disk, history, busy_life, first_cut)
        crashed = disk.power_loss(Loss.NONE)
        finished = live(crashed, history, start_only, cut)
        after = crashed.power_loss(loss, Random(cut))
        assert live(after, history, busy_life, None)
        cut += 1
    assert cut > (2 if limits else 10)


@LIMITS
def test_in_os_mode_a_kill_at_any_operation_loses_nothing(
    limits: WritebackLimits | None,
) -> None:  # D1
    for cut in range(operations_of(busy_life, limits=limits)):
        disk, history = SimDisk(), History("os", limits)
        live(disk, history, busy_life, cut)
        assert live(disk.power_loss(Loss.NONE), history, busy_life, None)


ACTIONS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 700)),
    st.tuples(st.just("transactional"), st.sampled_from(PRODUCERS)),
    st.tuples(st.just("commit"), st.sampled_from(PRODUCERS)),
    st.tuples(st.just("abort"), st.sampled_from(PRODUCERS)),
    st.tuples(st.just("owner"), st.sampled_from(GROUPS)),
    st.tuples(st.sampled_from(["write", "flush", "checkpoint"]), st.just(0)),
    st.tuples(st.just("seal"), st.integers(0, 3)),
)


KILL = "kill -9"


CHECKPOINTS = st.sampled_from([None, AT_EACH_WRITE, AT_EACH_WRITE._replace(each=20_000)])


def lives_ended_by(*ends: Loss | str):
    """Some runs: what is done in each, how it ends (None: cleanly), where, and what fails."""
    life = st.tuples(
        st.lists(ACTIONS, max_size=25),
        st.sampled_from([*ends, None]),
        st.integers(0, 1 << 16),
        st.none() | st.integers(0, 80),
        st.none() | st.integers(0, 40),
    )
    return st.lists(life, min_size=1, max_size=5)


def after(disk: SimDisk, end: Loss | str | None, seed: int) -> SimDisk:
    """The disk as the next run finds it."""
    if end == KILL:
        return disk.restarted()
    assert end is None or isinstance(end, Loss)
    return disk.power_loss(end or Loss.TORN, Random(seed))


async def perform(machine: Machine, actions: list[tuple[str, int]], *, stops: bool) -> None:
    await machine.start()
    for verb, argument in actions:
        match verb:
            case "append":
                machine.append(argument)
            case "transactional":
                machine.append_transactional(argument)
            case "owner":
                machine.set_owner(argument)
            case "seal":
                if argument == 0:  # rarely: little follows it
                    machine.seal()
            case "commit" | "abort":
                open_ones = {t.producer_id for t in machine.world.log.open_transactions()}
                if argument in open_ones:
                    machine.end_transaction(argument, commit=verb == "commit")
            case _:
                await getattr(machine, verb)()
    if stops:
        await machine.stop()


@given(lives=lives_ended_by(KILL, Loss.ALL, Loss.TORN, Loss.NONE), limits=CHECKPOINTS)
@settings(max_examples=100, deadline=None)
def test_any_restarts_on_one_disk_keep_a_prefix_with_all_that_was_acknowledged(
    lives, limits: WritebackLimits | None
) -> None:  # E15
    disk, history = SimDisk(), History("fsync", limits)
    for actions, end, seed, cut, fault in lives:
        live(disk, history, lambda m: perform(m, actions, stops=end is None), cut, fault)  # noqa: B023
        disk = after(disk, end, seed)
    assert live(disk, history, start_only, None)


@given(lives=lives_ended_by(KILL, *Loss), limits=CHECKPOINTS)
@settings(max_examples=80, deadline=None)
def test_in_os_mode_any_power_cut_leaves_a_prefix(
    lives, limits: WritebackLimits | None
) -> None:  # E15
    disk, history = SimDisk(), History("os", limits)
    for actions, end, seed, cut, fault in lives:
        live(disk, history, lambda m: perform(m, actions, stops=end is None), cut, fault)  # noqa: B023
        disk = after(disk, end, seed)
        if end not in {KILL, Loss.NONE}:
            history.acknowledged = b""  # acknowledged under `os` may be lost with the power
    assert live(disk, history, start_only, None)


def test_a_partition_that_a_kill_left_half_made_keeps_what_it_acknowledges_later() -> None:  # D1
    async def first_batch(machine: Machine) -> None:
        await machine.start()
        machine.append(100)
        await machine.flush()

    for cut in range(operations_of(first_batch)):
        disk, history = SimDisk(), History("fsync")
        assert not live(disk, history, first_batch, cut)
        killed = disk.restarted()
        assert live(killed, history, first_batch, None)
        assert live(killed.power_loss(Loss.ALL), history, start_only, None), cut


@pytest.mark.slow  # many power cuts
def test_segments_made_in_one_write_are_never_lost_from_between_others() -> None:  # E15
    async def long_write(machine: Machine) -> None:
        await machine.start()
        for _ in range(6):
            machine.append(700)
        await machine.write()

    for cut in range(0, operations_of(long_write), 2):
        for seed in range(8):
            disk, history = SimDisk(), History("fsync")
            live(disk, history, long_write, cut)
            assert live(disk.power_loss(Loss.TORN, Random(seed)), history, start_only, None)


@given(seed=st.integers(0, 1 << 16))
@settings(max_examples=60, deadline=None)
def test_pages_lost_between_others_are_cut_off_or_reported_and_never_served(seed: int) -> None:
    disk, history = SimDisk(), History("fsync")  # D3

    async def writes(machine: Machine) -> None:
        await machine.start()
        machine.append(100)
        await machine.flush()
        for _ in range(4):
            machine.append(100)
        await machine.write()

    assert live(disk, history, writes, None)
    try:
        live(disk.power_loss(Loss.HOLES, Random(seed)), history, start_only, None)
    except CorruptionError as error:
        assert "a sound batch follows it" in str(error)  # noqa: PT017
