"""Tests for what a worker keeps away from the garbage collector."""

import gc
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from fencelog.spark import worker_heap
from fencelog.spark.worker_heap import freeze_imports
from tests.support.frozen import freeze_all


@pytest.fixture(autouse=True)
def _collected_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker_heap, "_modules_frozen", 0)
    gc.unfreeze()
    yield
    gc.unfreeze()
    freeze_all()


def test_a_collection_after_a_task_does_not_visit_what_is_imported() -> None:
    everything = len(gc.get_objects())
    freeze_imports()
    assert gc.get_freeze_count() >= everything // 2
    assert len(gc.get_objects()) < everything // 10


def test_only_a_new_import_freezes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    freeze_imports()
    kept: list[list[int]] = [[]]
    freeze_imports()
    assert any(each is kept for each in gc.get_objects()), "a task's object was frozen"
    monkeypatch.setitem(sys.modules, "imported_by_a_task", ModuleType("imported_by_a_task"))
    freeze_imports()
    assert not any(each is kept for each in gc.get_objects())
