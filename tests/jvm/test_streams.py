"""Java and streams: a producer is told at once, a consumer reads every segment past its seal."""

import time
from collections.abc import Iterator

import pytest

from fencelog.client.blocking import Client
from tests.support.broker import BrokerProcess
from tests.support.jvm.host import ToolHost
from tests.support.resized_streams import Written, write_resized_stream

TOOLS = "org.apache.kafka.tools."
AT_ONCE_S = 10.0
"""Of the whole tool; it retries for two minutes if it is not told."""


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
