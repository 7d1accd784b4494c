"""Stock consumers of many partitions in fetch sessions (KIP-227), also when answers are lost."""

from collections import Counter
from collections.abc import Callable
from functools import partial

from kafka import KafkaConsumer
from kafka import TopicPartition as Place

from fencelog.client.blocking import Client
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.headers import read_request_header
from fencelog.wire.hot import FetchRequest, read_fetch_request
from tests.conformance.test_client_faults import Every, numbered
from tests.support.proxy import Action, FrameProxy, Request
from tests.support.waiting import wait_until

Proxied = Callable[[Callable[[Request], Action]], FrameProxy]
PARTITIONS = 60


class Fetches:
    """Notes every fetch, and loses every n-th answer."""

    def __init__(self, every: int) -> None:
        self.seen: list[FetchRequest] = []
        self._lose = Every(ApiKey.FETCH, every)

    def __call__(self, request: Request) -> Action:
        if request.api_key == ApiKey.FETCH:
            header, body = read_request_header(memoryview(request.frame)[4:])
            self.seen.append(read_fetch_request(body, header.api_version))
        return self._lose(request)


def test_a_consumer_of_many_partitions_names_only_what_has_moved(
    proxied: Proxied, topic: str
) -> None:
    fetches = Fetches(every=7)
    address = proxied(fetches).address
    places = [Place(topic, number) for number in range(PARTITIONS)]
    with Client(address) as client:
        client.create_topic(topic, PARTITIONS)
        consumer = KafkaConsumer(
            bootstrap_servers=address,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=50,
            isolation_level="read_committed",
        )
        consumer.assign(places)
        read: Counter[int] = Counter()

        def has_read(count: int) -> bool:
            for records in consumer.poll(timeout_ms=50).values():
                read.update(int(record.value) for record in records)
            return len(read) >= count

        for first in range(0, 200, 20):
            with client.arrow_writer(topic=topic) as writer:
                writer.write(numbered(first, 20))
            wait_until(partial(has_read, first + 20), what="all records")
        consumer.close()
    assert read == Counter(range(200))
    incremental = [each for each in fetches.seen if each.session_id > 0 and each.session_epoch > 0]
    named = [sum(len(topic.partitions) for topic in each.topics) for each in incremental]
    assert len(incremental) > len(fetches.seen) / 2
    assert max(named) < PARTITIONS
