"""The compiled loops, called by themselves: what they refuse, and where their code is kept."""

import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numba
import numpy as np
import pytest

from fencelog.client import kernel, kernel_cache, kernel_encode
from fencelog.client.arrow import _Room, schema_of
from fencelog.errors import WireError
from fencelog.wire.primitives import write_varint
from tests.unit.client.batches_of import (
    EVERY_COLUMN,
    batch,
    before_a_wall,
    decoded,
    record,
    with_crc,
)

HEADER = batch([record()])[:61]
RECORDS = np.frombuffer(b"\x0c\x00\x00\x00\x01\x01\x00\x0c\x00\x00\x02\x01\x01\x00", np.uint8)
"""Two records whose key and value are null."""


def fields(*numbers: int | bytes) -> bytes:
    """Numbers as varints, and bytes as they are."""
    out = bytearray()
    for each in numbers:
        if isinstance(each, bytes):
            out += each
        else:
            write_varint(out, each)
    return bytes(out)


def one_record(content: bytes) -> bytes:
    """A batch with one record: its length, attributes, both deltas 0, and this."""
    body = b"\x00\x00\x00" + content
    data = bytearray(HEADER + fields(len(body)) + body)
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">i", data, 23, 0)
    struct.pack_into(">i", data, 57, 1)
    return with_crc(data)


NULL = -1


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (fields(-2, NULL, 0), "a length does not fit"),
        (fields(4, b"key"), "a length does not fit"),
        (fields(3, b"key"), "a number runs past"),
        (fields(NULL, -2, 0), "a length does not fit"),
        (fields(NULL, 4, b"val"), "a length does not fit"),
        (fields(NULL, 3, b"val"), "a number runs past"),
        (fields(NULL, NULL, -1), "a length does not fit"),
        (fields(NULL, NULL, 2, b"..."), "a length does not fit"),
        (fields(NULL, NULL, 1, -1, 0), "a length does not fit"),
        (fields(NULL, NULL, 1, 2, b"h"), "a length does not fit"),
        (fields(NULL, NULL, 1, 1, b"h"), "a number runs past"),
        (fields(NULL, NULL, 1, 0, -2), "a length does not fit"),
        (fields(NULL, NULL, 1, 0, 1), "a length does not fit"),
        (fields(NULL, NULL, 0, b"."), "bytes are left over"),
        (fields(NULL, NULL, 1, 0, 0, b"."), "bytes are left over"),
        (fields(NULL, NULL, b"\x80"), "a number runs past"),
        (fields(b"\x81" * 11), "a number runs past"),
    ],
)
@pytest.mark.parametrize("columns", [EVERY_COLUMN, frozenset({"offset"})])
def test_a_length_that_does_not_fit_is_refused_before_it_is_used(
    content: bytes, complaint: str, columns: frozenset[str]
) -> None:
    with pytest.raises(WireError, match=complaint):
        decoded(before_a_wall(one_record(content)), columns=columns)


@pytest.mark.parametrize(
    ("content", "value", "headers"),
    [
        (fields(NULL, 3, b"val", 0), b"val", None),
        (fields(NULL, NULL, 1, 1, b"h", NULL), None, [{"key": "h", "value": None}]),
        (fields(NULL, 0, 1, 0, 1, b"v"), b"", [{"key": "", "value": b"v"}]),
        (fields(NULL, 0, 1, 0, 0), b"", [{"key": "", "value": b""}]),
    ],
)
def test_a_field_may_end_where_its_record_ends(
    content: bytes, value: bytes | None, headers: object
) -> None:
    (row,) = decoded(before_a_wall(one_record(content)))
    assert (row["value"], row["headers"]) == (value, headers)


def segment(start: int, end: int, count: int) -> np.ndarray:
    """A row of the segment table: a batch at these bytes, of this many records."""
    return np.array([[start, end, 0, 0, -1, count, count - 1]], np.int64)


@pytest.mark.parametrize(
    ("start", "end"), [(-7, 7), (-7, -14), (14, 7), (0, RECORDS.size + 1), (7, RECORDS.size + 1)]
)
def test_a_batch_outside_the_data_is_refused(start: int, end: int) -> None:
    table = segment(start, end, 1)
    assert _Room(schema_of(EVERY_COLUMN), 1, 100, 0).fill(RECORDS, table, 0, 9) == kernel.TOO_MANY
    assert kernel.count_headers(RECORDS, table) == 0


@pytest.mark.parametrize(
    ("rows", "size", "columns"),
    [
        (1, 14, {"offset"}),
        (2, 13, {"key"}),
        (2, 13, {"value"}),
        (2, 13, {"headers"}),
    ],
)
def test_a_batch_for_which_there_is_no_room_is_refused(
    rows: int, size: int, columns: set[str]
) -> None:
    schema, table = schema_of(frozenset(columns)), segment(0, RECORDS.size, 2)
    assert _Room(schema, rows, size, 0).fill(RECORDS, table, 0, 9) == kernel.TOO_MANY
    assert _Room(schema, 2, 14, 0).fill(RECORDS, table, 0, 9) == kernel.OK


@pytest.mark.parametrize("row", [0, 2])
@pytest.mark.parametrize(
    "wrong",
    [{"topic_of": 1}, {"topic_of": -1}, {"key_ends": 5}, {"explicit": 3}, {"explicit": -1}],
    ids=str,
)
def test_a_row_that_has_no_partition_is_named_by_its_number(row: int, wrong: dict) -> None:
    key_offsets = np.zeros(5, np.int32)
    none = np.empty(0, np.int32)
    columns = {
        "topic_of": np.zeros(4, np.int32),
        "key_ends": key_offsets[1:],
        "explicit": np.zeros(4, np.int32) if "explicit" in wrong else none,
    }
    for name, number in wrong.items():
        columns[name][row] = number
    bases = np.array([0, 3], np.int32)
    done = kernel_encode.partition(
        4, True, key_offsets, np.zeros(4, np.uint8), np.empty(0, np.uint8),
        columns["topic_of"], bases[1:], bases, columns["explicit"], np.empty(0, np.uint8),
        np.zeros(1, np.int32), none, none, np.empty(0, np.int32), np.empty(4, np.int32),
    )  # fmt: skip
    assert done == -1 - row


# --- where the machine code is kept, and who compiles it beforehand


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files; what is set for numba is taken back."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    return tmp_path


def private(temporary: Path) -> Path:
    return temporary / f"fencelog-numba-{os.getuid()}"


def kept_in(monkeypatch: pytest.MonkeyPatch, *impossible: str) -> list[tuple[str, bool]]:
    """Where the code of a function is kept (``CACHE_DIR``, cached), with these refused."""
    tried: list[tuple[str, bool]] = []

    def njit(_signature: object, *, cache: bool = False, **_how: object) -> object:
        folder = numba.config.CACHE_DIR
        tried.append((folder, cache))
        if cache and folder in impossible:
            raise RuntimeError("no locator available")
        return lambda function: function

    monkeypatch.setattr(numba, "njit", njit)
    assert kernel.compiled(None)(len) is len
    return tried


def test_machine_code_is_kept_beside_the_package_where_that_can_be_written(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kept_in(monkeypatch) == [("", True)]
    assert not private(temporary).exists()


def test_else_it_is_kept_in_a_folder_of_this_user_alone(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = private(temporary)
    assert kept_in(monkeypatch, "") == [("", True), (str(folder), True)]
    assert folder.stat().st_mode & 0o777 == 0o700


def test_else_it_is_kept_nowhere(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(private(temporary))
    assert kept_in(monkeypatch, "", folder) == [("", True), (folder, True), (folder, False)]


@pytest.mark.parametrize("mode", [0o707, 0o770, 0o701])
def test_a_folder_that_others_can_use_is_not_trusted(
    mode: int, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private(temporary).mkdir()
    private(temporary).chmod(mode)
    assert kept_in(monkeypatch, "") == [("", True), ("", False)]


def test_a_link_to_a_folder_is_not_trusted(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (temporary / "elsewhere").mkdir(mode=0o700)
    private(temporary).symlink_to(temporary / "elsewhere")
    assert kept_in(monkeypatch, "") == [("", True), ("", False)]


@pytest.fixture
def compilers(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands of the processes that would compile; each fails if it is told to."""
    started: list[list[str]] = []

    def run(command: list[str], **_how: object) -> subprocess.CompletedProcess[bytes]:
        started.append(command)
        return subprocess.CompletedProcess(command, int((temporary / "fail").exists()))

    monkeypatch.setattr(subprocess, "run", run)
    return started


def compile_and_wait() -> None:
    if (waiting := kernel_cache.compile_ahead()) is not None:
        waiting.join()


def test_another_process_compiles_ahead_once_and_again_for_another_source_or_cache(
    compilers: list[list[str]], temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_and_wait()
    compile_and_wait()
    assert compilers == [[sys.executable, "-c", kernel_cache.COMPILE]]
    changed = temporary / "kernel.py"
    changed.touch()
    monkeypatch.setattr(kernel_cache, "SOURCES", (changed,))
    compile_and_wait()
    assert len(compilers) == 2
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(temporary / "elsewhere"))
    compile_and_wait()
    assert len(compilers) == 3


def test_a_compilation_that_failed_is_tried_again(
    compilers: list[list[str]], temporary: Path
) -> None:
    (temporary / "fail").touch()
    compile_and_wait()
    (temporary / "fail").unlink()
    compile_and_wait()
    assert len(compilers) == 2


def test_nothing_is_compiled_ahead_where_others_can_write(
    compilers: list[list[str]], temporary: Path
) -> None:
    private(temporary).mkdir()
    private(temporary).chmod(0o777)
    compile_and_wait()
    assert compilers == []
