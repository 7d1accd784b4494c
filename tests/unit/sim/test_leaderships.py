"""The monitor of leaderships notices what a broker keeps for longer than it leads."""

from types import SimpleNamespace
from typing import Any

from fencelog_sim.monitors.leaderships import _Life, _of_shards


def shard(name: str) -> Any:
    partition = SimpleNamespace(name=name)
    return type("Shard", (), {"partition": partition, "dropped": False})()


def test_a_shard_that_goes_without_being_dropped() -> None:  # E17
    first, second = shard("groups-0"), shard("groups-1")
    loaded = [first, second]
    runtime = SimpleNamespace(loaded=lambda: list(loaded))
    life = _Life(SimpleNamespace(broker=SimpleNamespace(runtimes=lambda: (runtime,))))  # type: ignore[arg-type]
    assert list(_of_shards(life)) == []
    loaded.remove(first)
    first.dropped = True
    assert list(_of_shards(life)) == []
    loaded.remove(second)
    (problem,) = _of_shards(life)
    assert problem == "the shard of groups-1 decides on, and is not the one in service"
    assert list(_of_shards(life)) == []
