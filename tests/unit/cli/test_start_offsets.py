"""The ``-o`` argument."""

import pytest

from fencelog.cli.output import UsageError
from fencelog.cli.start_offsets import At, Beginning, End, Exactly, Start, parse_start

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("beginning", Beginning()),
        ("start", Beginning()),
        ("end", End()),
        ("-5", End(back=5)),
        ("0", Exactly(0)),
        ("17", Exactly(17)),
        ("@1357034400000", At(1357034400000)),
        ("@1357034400", At(1357034400000)),
        ("@2013-01-01", At(1356998400000)),
        ("@2013-01-01T10:00:00+00:00", At(1357034400000)),
        ("@-15m", At(NOW_MS - 900_000)),
        ("@-2d", At(NOW_MS - 172_800_000)),
    ],
)
def test_each_form_says_where_reading_begins(text: str, start: Start) -> None:
    assert parse_start(text, now_ms=NOW_MS) == start


@pytest.mark.parametrize("text", ["", "middle", "+3", "@", "@yesterday", "@-3w", "--5", "1.5"])
def test_any_other_form_is_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(UsageError, match=r"^-o .*expected "):
        parse_start(text, now_ms=NOW_MS)
