"""The fingerprint of a batch: its line in the checkpoint, read where it can be (V3)."""

from pathlib import Path

import pytest

from fencelog.spark.writing import batch_fingerprint


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    offsets = tmp_path / "a checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "7").write_text("v1\n{}\n{}")
    return offsets.parent


def test_the_same_file_has_the_same_fingerprint_by_path_and_by_uri(checkpoint: Path) -> None:
    by_path = batch_fingerprint(str(checkpoint), 7)
    assert len(by_path) == 32
    assert batch_fingerprint(checkpoint.as_uri(), 7) == by_path
    assert batch_fingerprint("file:" + str(checkpoint).replace(" ", "%20"), 7) == by_path


def test_other_offsets_have_another_fingerprint(checkpoint: Path) -> None:
    before = batch_fingerprint(str(checkpoint), 7)
    (checkpoint / "offsets" / "7").write_text("v1\n{}\n{1}")
    assert batch_fingerprint(str(checkpoint), 7) != before


@pytest.mark.parametrize("location", [None, "s3a://bucket/checkpoint", "/nowhere"])
def test_what_cannot_be_read_has_none(location: str | None) -> None:
    assert batch_fingerprint(location, 7) == b""
