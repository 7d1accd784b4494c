"""What ``fencelog stream create`` makes of its options."""

import pytest

from fencelog.cli.output import UsageError
from fencelog.cli.stream_settings import EVENTS, KBYTES, LEAST, MOST, stream_settings


@pytest.mark.parametrize(
    ("rate", "key", "value"),
    [
        ("100/s", EVENTS, "100"),
        ("500KB/s", KBYTES, "500"),
        ("500kib/s", KBYTES, "500"),
        ("2MB/s", KBYTES, "2048"),
        ("1GB/s", KBYTES, "1048576"),
    ],
)
def test_a_rate_is_records_or_kibibytes_a_second(rate: str, key: str, value: str) -> None:  # R3
    assert stream_settings([], least=None, most=None, rates=[rate]) == {key: value}


def test_both_rates_the_limits_and_other_configs_are_merged() -> None:
    found = stream_settings(["retention.ms=60"], least=2, most=8, rates=["5/s", "1KB/s"])
    assert found == {"retention.ms": "60", LEAST: "2", MOST: "8", EVENTS: "5", KBYTES: "1"}


@pytest.mark.parametrize("rate", ["", "100", "0/s", "0KB/s", "100/m", "1.5MB/s", "-1/s", "fast"])
def test_a_rate_that_cannot_be_read_is_refused_with_examples(rate: str) -> None:
    with pytest.raises(UsageError, match=r"--rate .*: expected records as 100/s, or 500KB/s"):
        stream_settings([], least=None, most=None, rates=[rate])


def test_a_setting_that_is_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--rate 6/s: stream\.rate.* is set already"):
        stream_settings([], least=None, most=None, rates=["5/s", "6/s"])
    with pytest.raises(UsageError, match=r"--min: stream\.segments\.min is set already"):
        stream_settings([f"{LEAST}=3"], least=2, most=None, rates=[])


def test_a_minimum_above_the_maximum_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--min 9: --max is 2"):
        stream_settings([], least=9, most=2, rates=[])
