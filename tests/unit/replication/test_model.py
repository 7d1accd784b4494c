"""The rules of replication in a model: thousands of schedules, with losses, reorder and crashes.

Each planted mistake must be found, or the model would prove nothing (F2, F7, F8).
"""

from collections.abc import Callable

import pytest

from fencelog.replication.leader import LeaderProgress
from fencelog.types import Instant, LeaderEpoch, NodeId, Offset
from tests.unit.replication.model import Model
from tests.unit.replication.replica import Mistakes, Request, ViolationError

STEPS = 400
SOUND = Mistakes()


def violation(seeds: range, mistakes: Mistakes = SOUND) -> str | None:
    for seed in seeds:
        model = Model(seed, mistakes)
        try:
            for _ in range(STEPS):
                model.step()
            model.heal()
        except ViolationError as error:
            return f"seed {seed}: {error}"
    return None


def test_no_schedule_breaks_a_rule() -> None:
    assert violation(range(80)) is None


def test_the_schedules_commit_records_and_change_leaders() -> None:
    models = [Model(seed, Mistakes()) for seed in range(20)]
    for model in models:
        for _ in range(STEPS):
            model.step()
    assert sum(len(model.committed) for model in models) > 20
    assert sum(len(model.epochs_begun) for model in models) > 40


@pytest.mark.parametrize(
    "mistakes",
    [
        pytest.param(Mistakes(acknowledges_written=True), id="counts written, not durable"),
        pytest.param(Mistakes(truncates_to_high_watermark=True), id="cut to HW, not the fork"),
        pytest.param(Mistakes(never_truncates=True), id="no truncation"),
        pytest.param(Mistakes(proposal_counts_at_once=True), id="counted too early"),
    ],
)
def test_a_mistake_around_the_rules_is_found(mistakes: Mistakes) -> None:
    assert violation(range(500), mistakes) is not None


def ignores_the_slowest(self: LeaderProgress) -> Offset:
    if self.has_enough:
        ends = sorted(self._durable_end_of(each) for each in self._isr | self._proposed)
        own = self._durable_end
        self.high_watermark = max(self.high_watermark, min(own, *ends[1:]))
    return self.high_watermark


def joins_at_once(
    self: LeaderProgress,
    replica: NodeId,
    now: Instant,
    lag_s: float,
    log_end: Offset,
    log_start: Offset,
) -> bool:
    return replica == self._node_id or self._followers[replica].fetch_end >= 0


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        pytest.param("_advance", ignores_the_slowest, id="HW ignores the slowest member"),
        pytest.param("_belongs", joins_at_once, id="joined before catching up"),
        pytest.param("has_enough", property(lambda self: True), id="min ISR ignored"),
        pytest.param("serves", property(lambda self: True), id="served before the epoch's start"),
    ],
)
def test_a_mistake_in_the_rules_is_found(
    name: str, wrong: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LeaderProgress, name, wrong)
    assert violation(range(500)) is not None


class Schedule(Model):
    """A schedule by hand: leader 1 has two records, which 2 has too; 3 has none."""

    def __init__(self, mistakes: Mistakes) -> None:
        super().__init__(0, mistakes)
        self.apply(1, 2, 3)
        self._produce()
        self._produce()
        self.replicate(2)
        self._request_of(self.replicas[NodeId(2)])
        (late,) = self.bag
        assert isinstance(late, Request)
        self.late = late
        """What 2 says of its two records, on its way for a long time."""
        self.bag.clear()

    def apply(self, *nodes: int) -> None:
        for node in nodes:
            self._apply_one(self.replicas[NodeId(node)])

    def replicate(self, node: int) -> None:
        """Let a follower ask until it has everything, and flush it; the leader's too."""
        replica = self.replicas[NodeId(node)]
        for leader in self._leaders():
            self._flush_one(leader)
        for _ in range(8):
            self._request_of(replica)
            while self.bag:
                self._deliver()
            self._flush_one(replica)

    def elect(self, node: int) -> None:
        life = self.brokers[NodeId(node)].registration.incarnation
        epoch = LeaderEpoch(self.state.leader_epoch + 1)
        self._write(self.state._replace(leader=NodeId(node), leader_epoch=epoch, leader_life=life))


def word_of_an_earlier_epoch(mistakes: Mistakes) -> int:
    """3 leads for a while, so 2 cuts its records; 1 hears of it only when it leads again."""
    schedule = Schedule(mistakes)
    schedule.elect(3)
    schedule.apply(2, 3)
    schedule.replicate(2)
    assert not schedule.replicas[NodeId(2)].entries
    schedule.elect(1)
    schedule.apply(1, 3)
    schedule.replicate(3)
    schedule._serve(schedule.late)
    schedule.check()
    return schedule.replicas[NodeId(1)].high_watermark


def test_an_acknowledgement_of_an_earlier_epoch_does_not_count() -> None:
    assert word_of_an_earlier_epoch(Mistakes()) == 0
    with pytest.raises(ViolationError, match="2 may be elected and lacks committed records"):
        word_of_an_earlier_epoch(Mistakes(ignores_epochs=True))


def word_of_an_earlier_life(mistakes: Mistakes) -> tuple[NodeId, ...]:
    """The machine of 2 loses power, and its broker leaves the ISR before it registers again."""
    schedule = Schedule(mistakes)
    schedule.replicate(3)
    two = schedule.replicas[NodeId(2)]
    two.truncate(0)
    two.incarnation, two.lost_power = None, True
    schedule._restart_one(two)
    schedule.apply(1)
    schedule.replicate(3)
    schedule._serve(schedule.late)
    schedule.bag.clear()
    schedule._propose()
    schedule._store()
    schedule.check()
    return schedule.state.isr


def test_an_acknowledgement_of_an_earlier_life_lets_nobody_join() -> None:
    assert word_of_an_earlier_life(Mistakes()) == (1, 3)
    with pytest.raises(ViolationError, match="2 may be elected and lacks committed records"):
        word_of_an_earlier_life(Mistakes(joins_with_any_registration=True))
