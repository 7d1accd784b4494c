"""``fencelog doctor``: look at what a pipeline needs, and say what to do where something is wrong.

Nothing is changed or written, and no Spark session is started.
"""

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, requires
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fencelog.cli.options import (
    FormatOption,
    PropertyOption,
    connection,
)
from fencelog.cli.output import (
    ExitStatus,
    Format,
    default_format,
    reported_errors,
    say,
    show_json,
)
from fencelog.errors import FencelogError, RequestError, error_text
from fencelog.version import __version__

if TYPE_CHECKING:
    from fencelog.client.blocking import Client
    from fencelog.client.model import BrokerDescription
    from fencelog.spark.checkup import Finding, JavaFacts

FREE_BYTES_MIN = 1 << 30


def doctor(
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "-b",
            "--bootstrap-server",
            envvar="FENCELOG_BOOTSTRAP_SERVERS",
            metavar="HOST:PORT",
            help="Also look at this broker.",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir", metavar="DIR", help="Also look at this data directory of a broker."
        ),
    ] = None,
    properties: PropertyOption = None,
    form: FormatOption = None,
) -> None:
    """Check Python, Java, PySpark and the broker, and say what to do about each problem.

    The exit status is 0 if nothing is wrong, 1 if there is a problem.
    """
    with reported_errors():
        findings = list(_spark(os.environ))
        if bootstrap is not None:
            findings += _broker(bootstrap, properties)
        else:
            findings.append(_skipped("broker", "not asked for", "add -b HOST:PORT"))
        if data_dir is not None:
            findings += _data_directory(data_dir)
        _show(findings, form)


def _show(findings: Iterable["Finding"], form: FormatOption) -> None:
    """Print the findings; exits with status 1 if one is a problem."""
    rows = []
    for each in findings:
        row = asdict(each)
        row["what_to_do"] = row.pop("remedy")
        rows.append(row)
    if (form or default_format()) is Format.JSON:
        show_json(rows)
    else:
        sys.stdout.write(_table(rows))
    problems = sum(row["status"] == "problem" for row in rows)
    if problems:
        say(f"{problems} problem{'s' if problems > 1 else ''} found")
        raise SystemExit(int(ExitStatus.FAILED))


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    """One line for each row, and one for what to do. Nothing is cut, so that it can be copied."""
    widths = [max(len(row[column]) for row in rows) for column in ("check", "status")]
    lines = []
    for row in rows:
        lines.append(f"{row['check']:{widths[0]}}  {row['status']:{widths[1]}}  {row['found']}")
        if row["what_to_do"]:
            lines.append(f"{'':{sum(widths) + 4}}{row['what_to_do']}")
    return "\n".join(lines) + "\n"


def _spark(environment: Mapping[str, str]) -> Iterator["Finding"]:
    """The interpreters, packages and Java that a Spark session would get from this shell."""
    from fencelog.spark import checkup, probe

    driver = probe.driver()
    yield checkup.check_python(driver)
    yield checkup.Finding(check="fencelog", status="ok", found=__version__)
    yield from checkup.check_packages(driver, _requirements())
    yield checkup.check_java(_java(environment), driver)
    if "pyspark" not in driver.versions:
        yield _skipped("PYSPARK_PYTHON", "PySpark is not installed", "")
        return
    # The tasks' Python, and the one in which Spark's JVM looks for data sources.
    roles: dict[str, list[str]] = {}
    roles.setdefault(checkup.worker_name(environment), []).append("PYSPARK_PYTHON")
    roles.setdefault(checkup.lookup_name(environment), []).append("PYSPARK_DRIVER_PYTHON")
    for name, variables in roles.items():
        python = probe.interpreter(name, environment)
        yield checkup.check_workers(", ".join(variables), python, driver)
    home = environment.get("SPARK_HOME")
    version = probe.spark_home_version(Path(home)) if home else None
    yield checkup.check_spark_home(home or None, version, driver)


def _java(environment: Mapping[str, str]) -> "JavaFacts":
    from fencelog.spark.checkup import JavaFacts
    from fencelog.spark.java import JavaNotFoundError, find_java_home, java_version, runs_spark

    on_path = shutil.which("java", path=environment.get("PATH"))
    home = environment.get("JAVA_HOME") or (on_path and str(Path(on_path).resolve().parents[1]))
    version = java_version(Path(home)) if home and runs_spark(Path(home)) else None
    try:
        ours, error = str(find_java_home(environment)), ""
    except JavaNotFoundError as missing:
        ours, error = None, str(missing)
    return JavaFacts(home=home or None, version=version, ours=ours, error=error)


def _requirements() -> list[str]:
    try:
        return requires("fencelog") or []
    except PackageNotFoundError:  # run from a source tree
        return []


def _skipped(check: str, found: str, remedy: str) -> "Finding":
    from fencelog.spark.checkup import Finding

    return Finding(check=check, status="skipped", found=found, remedy=remedy)


def _broker(bootstrap: str, properties: list[str] | None) -> Iterator["Finding"]:
    """The bootstrap server, every broker at its advertised address, and what the sink needs."""
    from fencelog.spark.checkup import Finding

    with connection(bootstrap, properties).open() as client:
        try:
            described = client.cluster()
        except (FencelogError, OSError) as error:
            yield Finding(
                check="broker",
                status="problem",
                found=error_text(error),
                remedy="start it (`fencelog serve`), or correct -b HOST:PORT;"
                " a firewall may close the port",
            )
            return
        found = f"{bootstrap}: cluster {described.cluster_id}, {len(described.brokers)} broker(s)"
        yield Finding(check="broker", status="ok", found=found)
        reached = True
        for broker in described.brokers:
            finding = _advertised(bootstrap, broker, properties)
            reached = reached and finding.status != "problem"
            yield finding
        if reached:
            yield _exactly_once(client)


def _advertised(
    bootstrap: str, broker: "BrokerDescription", properties: list[str] | None
) -> "Finding":
    """Clients use the bootstrap server once; all else goes to the address that a broker names."""
    from fencelog.spark.checkup import Finding

    address = f"{broker.host}:{broker.port}"
    check, found = "advertised listener", f"broker {broker.node_id} names {address}"
    remedy = (
        f"set advertised.listeners=PLAINTEXT://HOST:PORT on broker {broker.node_id} to an address"
        " that every Spark machine can reach, and restart it"
    )
    try:
        with connection(address, properties).open() as client:
            client.cluster()
    except (FencelogError, OSError) as error:
        found = f"{found}, which cannot be reached: {error_text(error)}"
        return Finding(check=check, status="problem", found=found, remedy=remedy)
    if _is_loopback(broker.host) and not _is_loopback(bootstrap.rpartition(":")[0]):
        found = f"{found}, which only processes of its own machine reach"
        return Finding(check=check, status="warning", found=found, remedy=remedy)
    return Finding(check=check, status="ok", found=found)


def _exactly_once(client: "Client") -> "Finding":
    from fencelog.spark.checkup import Finding
    from fencelog.spark.driver_commit.prepare import has_versioned_transactions

    check = "exactly-once sink"
    try:
        versioned = has_versioned_transactions(client)
    except RequestError as error:
        return Finding(check=check, status="problem", found=str(error), remedy="try again")
    except FencelogError as error:
        remedy = "write with option delivery=at-least-once, or to another broker"
        return Finding(check=check, status="problem", found=str(error), remedy=remedy)
    found = "the broker has versioned transactions"
    if not versioned:
        found = "the broker has no versioned transactions: the driver commits"
    return Finding(check=check, status="ok", found=found)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _data_directory(path: Path) -> Iterator["Finding"]:
    """Whether this user can run a broker on the directory."""
    from fencelog.spark.checkup import Finding

    check = "data directory"
    existing = next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
    if not existing.is_dir():
        yield Finding(
            check=check,
            status="problem",
            found=f"{existing} is not a directory",
            remedy="name a directory",
        )
        return
    barred = next(_barred(existing if existing != path.absolute() else path), None)
    if barred is not None:
        user = os.environ.get("USER") or f"user {os.getuid()}"
        yield Finding(
            check=check,
            status="problem",
            found=f"{user} cannot read and write {barred}",
            remedy=f"run as root: chown -R {os.getuid()}:{os.getgid()} '{existing}'; or run the"
            " broker as the owner",
        )
        return
    free = shutil.disk_usage(existing).free
    state = "usable" if existing == path.absolute() else "can be created"
    found = f"{path} {'is ' if state == 'usable' else ''}{state}, {free / (1 << 30):.1f} GiB free"
    if free < FREE_BYTES_MIN:
        remedy = "make room: a full disk stops writes"
        yield Finding(check=check, status="warning", found=found, remedy=remedy)
    else:
        yield Finding(check=check, status="ok", found=found)


def _barred(directory: Path) -> Iterator[Path]:
    """What in the directory this user cannot read and write, the directory itself first."""
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        yield directory
        return
    for folder, folders, files in os.walk(directory):
        for name in (*folders, *files):
            if not os.access(Path(folder, name), os.R_OK | os.W_OK):
                yield Path(folder, name)
