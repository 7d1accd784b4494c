"""Java and streams: a producer is told at once, consumers and kafka-dump-log read segments."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencelog.client.blocking import Client
from tests.jvm._dump import DEEP, dump, records
from tests.support.broker import BrokerProcess
from tests.support.jvm.host import ToolHost
from tests.support.resized_streams import Written, write_resized_stream

TOOLS = "org.apache.kafka.tools."
AT_ONCE_S = 10.0
"""Of the whole tool; it retries for two minutes if it is not told."""
SEAL = re.compile(r"isControl: true .*\n\| offset: (\d+) ")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("streams") / "data") as process:
        yield process


@pytest.fixture(scope="module")
def written(broker: BrokerProcess, tools: ToolHost) -> Written:
    return write_resized_stream(broker.address, "resized")


def test_the_java_producer_gets_one_final_error_with_its_text(  # R1
    broker: BrokerProcess, tools: ToolHost, topic: str
) -> None:
    with Client(broker.address) as client:
        client.create_stream(topic, 2)
    begin = time.monotonic()
    where = ("--bootstrap-server", broker.address, "--topic", topic)
    outcome = tools.run(f"{TOOLS}ConsoleProducer", *where, "--sync", stdin="by partition count")
    assert "PolicyViolationException" in outcome.err
    assert f"topic {topic} is a stream" in outcome.err
    assert "Write to it with fencelog's client" in outcome.err
    assert time.monotonic() - begin < AT_ONCE_S


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_the_java_consumer_reads_every_segment_past_its_seal(  # R1, R2
    broker: BrokerProcess, tools: ToolHost, written: Written, isolation: str
) -> None:
    wanted = written.committed if isolation == "read_committed" else written.everything
    lines = sorted(f"{key!r} {value!r}" for key, values in wanted.items() for value in values)
    arguments = ("--bootstrap-server", broker.address, "--topic", "resized", "--from-beginning")
    limits = ("--max-messages", str(len(lines)), "--timeout-ms", "20000")
    shape = ("--formatter-property", "print.key=true", "--isolation-level", isolation)
    outcome = tools.done(f"{TOOLS}consumer.ConsoleConsumer", *arguments, *limits, *shape)
    seen = (line.split("\t", 1) for line in outcome.lines)
    assert sorted(f"{key.encode()!r} {value.encode()!r}" for key, value in seen) == lines


def test_kafka_dump_log_reads_a_sealed_segment(tools: ToolHost, tmp_path: Path) -> None:  # R2, D3
    with BrokerProcess(tmp_path / "data") as broker:
        write_resized_stream(broker.address, "resized")
        with Client(broker.address) as client:
            segments = client.describe_stream("resized").segments
        assert broker.terminate() == 0
        sealed = [each for each in segments if each.end >= 0]
        assert len(sealed) == 4
        for each in sealed:
            files = sorted((broker.data_dir / f"resized-{each.index}").glob("*.log"))
            said = dump(tools, files, *DEEP).files
            text = "".join(said[file] for file in files)
            assert text.count("isvalid: true") == text.count("baseOffset: ")
            assert str(each.end) in SEAL.findall(text)
            assert all(record.offset < each.end for record in records(text) if record.key)
