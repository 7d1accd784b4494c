"""Spark's classes as a JVM has them in memory: a file that the JVMs of tests map (JEP 350).

A driver loads some ten thousand classes, which is half of the CPU time of its first query. A JVM
ignores an archive that is not there yet, or is of another Java or of other jars.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from fencelog.spark.java import cache_directory
from fencelog.spark.session import build_session
from tests.clients.install import alone

ROOT = Path(__file__).parent.parent.parent.parent
LIGHT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A Spark session of a test lives for seconds: it gains nothing from the second compiler."""
MAKE_S = 300.0
END_S = 120.0


def _place() -> Path:
    """Where the archive for the installed Spark and Java is, or will be."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    files = sorted((Path(spec.origin).parent / "jars").glob("*.jar"))
    if java := shutil.which("java"):
        files.append(Path(java).resolve())
    known = [(each.name, each.stat().st_mtime_ns, each.stat().st_size) for each in files]
    key = hashlib.sha256(repr((os.environ.get("JAVA_HOME"), known)).encode()).hexdigest()[:12]
    return cache_directory(os.environ) / "spark" / f"classes-{key}.jsa"


def options() -> str:
    """The JVM's options for a short life."""
    return f"{LIGHT} -XX:SharedArchiveFile={_place()}"


def make() -> None:
    """Make the archive, unless it is there, in place of those of other jars."""
    archive = _place()
    with alone(archive.parent):
        if archive.exists():
            return
        for other in archive.parent.glob("*.jsa"):
            other.unlink()
        with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
            made = Path(folder, archive.name)
            environment = dict(os.environ, PYTHONPATH=str(ROOT))
            environment["SPARK_SUBMIT_OPTS"] = f"{LIGHT} -XX:ArchiveClassesAtExit={made}"
            command = [sys.executable, "-m", "tests.support.spark.class_archive", folder]
            subprocess.run(command, env=environment, timeout=MAKE_S, check=True)
            made.rename(archive)


def main(folder: str) -> None:
    """Run a query of each kind, so that what drivers need is loaded, and end with the JVM."""
    spark = build_session(name="classes", master="local[2]")
    spark.range(100).selectExpr("id % 7 AS key").groupBy("key").count().toPandas()
    stream = spark.readStream.format("rate").load().writeStream.format("noop")
    stream = stream.option("checkpointLocation", f"{folder}/checkpoint").trigger(once=True)
    stream.start().awaitTermination()
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    spark.stop()
    jvm = gateway.proc
    gateway.shutdown()
    jvm.stdin.close()
    jvm.wait(END_S)


if __name__ == "__main__":
    main(sys.argv[1])
