"""A broker that compacts all the time is killed again and again: no newest value is ever lost."""

import threading
from pathlib import Path
from random import Random
from typing import Any

from tests.support.broker import BrokerProcess
from tests.support.stock import DEADLINE_S, Confluent

KEYS = 12
KILLS = 6
TOPIC = "kept"
SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "4096",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "300",
}


class Writer:
    """Writes under few keys; knows what was acknowledged last and what was sent last."""

    def __init__(self, address: str) -> None:
        from confluent_kafka import Producer

        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "message.timeout.ms": 20_000,
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        self._random = Random(7)
        self.number = 0
        self.sent: dict[bytes, list[tuple[int, bytes | None]]] = {}
        self.acknowledged: dict[bytes, int] = {}

    def write(self, count: int) -> None:
        """Send so many records, some of them tombstones; wait until each has its answer."""
        for _ in range(count):
            self.number += 1
            number, key = self.number, b"key-%d" % self._random.randrange(KEYS)
            value = None if number % 7 == 0 else b"%d;" % number + b"x" * 200
            self.sent.setdefault(key, []).append((number, value))
            self._producer.produce(TOPIC, value, key, on_delivery=self._told(key, number))
            self._producer.poll(0)
        assert self._producer.flush(30) == 0

    def _told(self, key: bytes, number: int) -> Any:
        def told(error: object, _: object) -> None:
            if error is None:
                self.acknowledged[key] = max(self.acknowledged.get(key, 0), number)

        return told

    def allowed(self, key: bytes) -> set[bytes | None]:
        """What may be the newest value of a key: the last acknowledged one, or one sent after."""
        least = self.acknowledged.get(key, 0)
        values = {value for number, value in self.sent[key] if number >= least}
        return values if least else {*values, None}


def test_kills_during_compaction_lose_no_newest_value_and_bring_none_back(
    tmp_path: Path,
) -> None:  # D4, E15
    from confluent_kafka.admin import AdminClient, NewTopic

    with BrokerProcess(tmp_path / "data", settings="log.cleaner.backoff.ms=5\n") as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=SETTINGS)])[TOPIC].result(DEADLINE_S)
        random = Random(3)
        writer = Writer(broker.address)
        for _ in range(KILLS):
            killer = threading.Timer(random.uniform(0.05, 0.6), broker.restart)
            killer.start()
            writer.write(400)
            killer.join()
            seen = {one.key: one for one in Confluent().read(broker.address, TOPIC)}
            for key in writer.sent:
                value = seen[key].value if key in seen else None
                assert value in writer.allowed(key), (key, value, writer.acknowledged.get(key))
        left = len(Confluent().read(broker.address, TOPIC))
        assert left < writer.number / 3, "compaction was at work"
