"""kaskade, a terminal interface: what its screens show is true, and its forms do what they say."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from fencelog.client.blocking import Client
from fencelog.types import TopicPartition
from tests.ecosystem._tools import HERE, environment
from tests.support.broker import BrokerProcess
from tests.support.stock import Confluent, ToSend

DEADLINE_S = 60.0


def test_kaskade_shows_what_is_there_and_changes_what_it_is_told_to(
    tmp_path: Path, had: Callable[..., Path]
) -> None:
    python = had(environment, "kaskade")
    with BrokerProcess(tmp_path / "data") as broker, Client(broker.address) as admin:
        admin.create_topic("looked-at", 2)
        sent = [ToSend(b"%d" % number, partition=number % 2) for number in range(30)]
        Confluent().write(broker.address, "looked-at", sent)
        first, second = (TopicPartition("looked-at", number) for number in range(2))
        admin.delete_records({first: 3})
        admin.commit_offsets("readers", {first: 5, second: 15})
        program = str(HERE / "programs" / "kaskade_shows.py")
        done = subprocess.run(
            [python, program, broker.address, "looked-at", "made"],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    shown = told["shown"]
    assert shown["partitions"] == [[0, 1, 3, 15], [1, 1, 0, 15]]
    assert shown["replicas"] == [1, 1]
    assert shown["groups"] == [["readers", "empty", 10]]
    values = {number % 2: [] for number in range(2)}
    for number in range(30):
        values[number % 2].append(str(number))
    wanted = [[place, at, each] for place in values for at, each in enumerate(values[place])]
    assert shown["records"] == [each for each in wanted if each[0] == 1 or each[1] >= 3]
    assert shown["configs"]["cleanup.policy"] == "delete"
    assert told["changed"]["partitions"] == 3
    assert told["changed"]["configs"]["retention.ms"] == "7200000"
    assert told["changed"]["configs"]["min.insync.replicas"] == "1"
    assert not told["changed"]["is_left"]
