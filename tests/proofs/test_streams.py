"""A slice of ``./dev prove streams``."""

import random
from pathlib import Path

import pytest

from tests.proofs._streams_rig import run


@pytest.mark.slow
@pytest.mark.conformance
def test_what_is_written_through_resizes_and_kills_is_there_and_copied_once(
    tmp_path: Path,
) -> None:  # R2, R6, R8
    verdict = run(
        tmp_path,
        megabytes=4,
        resizes=4,
        seed=random.randrange(10**6),
        record_bytes=1000,
        progress=lambda: None,
    )
    assert verdict.problems == []
    assert verdict.resizes > 0
    assert verdict.stored == verdict.copied
    assert verdict.stored >= 3000
