"""How values are read, and the sentence that helps where somebody wrote another unit."""

import pytest

from fencelog.settings.kinds import (
    INT32_MAX,
    INT64_MAX,
    Fraction,
    Kind,
    OneOf,
    SomeOf,
    Truth,
    Whole,
)

MS, BYTES, HOURS = (
    Whole(-1, INT64_MAX, "ms"),
    Whole(0, INT32_MAX, "bytes"),
    Whole(1, 99999, "hours"),
)
TO_INT64 = "expected a whole number of milliseconds from -1 to 9223372036854775807"
TO_INT32 = "expected a whole number of bytes from 0 to 2147483647"


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (MS, "-1", -1),
        (MS, " 5 ", 5),
        (MS, "+5", 5),
        (Truth(), "TRUE ", True),
        (Truth(), "false", False),
        (Fraction(), "0.5", 0.5),
        (OneOf(("fsync", "os")), " os", "os"),
        (SomeOf(("delete", "compact")), "compact, delete", frozenset({"compact", "delete"})),
    ],
)
def test_a_value_is_read_without_the_spaces_around_it(kind: Kind, text: str, value: object) -> None:
    assert kind.parse(text) == value
    assert kind.parse(kind.show(value)) == value


@pytest.mark.parametrize(
    ("kind", "text", "told"),
    [
        (MS, "7d", f"{TO_INT64}; 7 days are 604800000"),
        (MS, "10s", f"{TO_INT64}; 10 seconds are 10000"),
        (MS, "1h", f"{TO_INT64}; 1 hour is 3600000"),
        (MS, "1.5 min", f"{TO_INT64}; 1.5 minutes are 90000"),
        (MS, "soon", TO_INT64),
        (MS, "", TO_INT64),
        (MS, "-2", TO_INT64),
        (MS, "512MB", TO_INT64),
        (MS, "9" * 40, TO_INT64),
        (MS, "٣", TO_INT64),
        (BYTES, "512MB", f"{TO_INT32}; 512 MiB are 536870912"),
        (BYTES, "1GiB", f"{TO_INT32}; 1 GiB is 1073741824"),
        (BYTES, "100_000", f"{TO_INT32}; write 100000"),
        (BYTES, '"100"', f"{TO_INT32}; write 100"),
        (HOURS, "2w", "expected a whole number of hours from 1 to 99999; 2 weeks are 336"),
        (HOURS, "30m", "expected a whole number of hours from 1 to 99999"),
        (Whole(1, 9), "7d", "expected a whole number from 1 to 9"),
        (Truth(), "yes", "expected true or false"),
        (Fraction(), "50%", "expected a number from 0 to 1, for example 0.5"),
        (Fraction(), "nan", "expected a number from 0 to 1, for example 0.5"),
        (OneOf(("fsync", "os")), "FSYNC", "expected fsync or os; did you mean fsync?"),
        (OneOf(("1",), "there is one"), "2", "expected 1: there is one"),
        (SomeOf(("a", "b")), "a,c", "expected a or b, or more of them with commas"),
        (SomeOf(("a",), "no other"), "a,b", "expected a: no other"),
    ],
)
def test_a_refusal_says_what_is_expected_and_what_was_meant(
    kind: Kind, text: str, told: str
) -> None:
    with pytest.raises(ValueError, match=r"^expected") as refusal:
        kind.parse(text)
    assert str(refusal.value) == told
