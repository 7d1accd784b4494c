"""Each transcript comes out as it is written.

To write one, put commands with nothing below ``----``, run
``FENCELOG_REWRITE=1 pytest tests/scenarios`` and read what came out, word for word.
"""

import os
from pathlib import Path

import pytest

from tests.scenarios.group_stage import GroupStage
from tests.scenarios.transaction_stage import TransactionStage
from tests.scenarios.transcript import play
from tests.scenarios.versioned_stage import VersionedStage
from tests.scenarios.words import Stage

HERE = Path(__file__).parent
STAGES: dict[str, type[Stage]] = {
    "group": GroupStage,
    "transaction": TransactionStage,
    "versioned": VersionedStage,
}


@pytest.mark.parametrize("path", sorted(HERE.glob("*.txt")), ids=lambda path: path.stem)
def test_a_transcript_comes_out_as_it_is_written(path: Path) -> None:
    stage = STAGES[path.stem.partition("_")[0]]()
    played = play(path, stage.answer)
    if os.environ.get("FENCELOG_REWRITE") == "1":
        path.write_text(played, encoding="utf-8")
    assert played == path.read_text(encoding="utf-8")
