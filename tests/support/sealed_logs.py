"""Logs of a stream with everything that may stand before and after a seal, by fencelog's client."""

from contextlib import closing

from fencelog.client.blocking import Client
from tests.support.owned_logs import Written
from tests.support.ownership import BlockingClaimant


def write_sealed_log(client: Client, address: str, stream: str, **settings: str) -> Written:
    """A segment that splits inside a committed and an aborted transaction, and has owners.

    Behind its seal are the markers of both, and the record of an owner and of its end.
    """
    configs = {name.replace("_", "."): value for name, value in settings.items()}
    client.create_stream(stream, 1, configs)
    written = Written([], [])
    with (
        BlockingClaimant(address, group=f"readers of {stream}") as readers,
        closing(client.producer(transactional_id=f"{stream} kept")) as kept,
        closing(client.producer(transactional_id=f"{stream} aborted")) as aborted,
    ):
        readers.own(f"{stream}/0")
        kept.begin()
        aborted.begin()
        for number in range(40):
            for producer, name in ((kept, b"kept"), (aborted, b"aborted")):
                value = b"%s %d before" % (name, number)
                producer.send(stream, value, key=b"%d" % number)
                written.everything.append(value)
        kept.flush()
        aborted.flush()
        assert client.split_segment(stream, 0) == [1, 2]
        for number in range(40):
            for producer, name in ((kept, b"kept"), (aborted, b"aborted")):
                value = b"%s %d after" % (name, number)
                producer.send(stream, value, key=b"%d" % number)
                written.everything.append(value)
        aborted.flush()
        kept.commit()
        aborted.abort()
        readers.release()
    written.committed.extend(each for each in written.everything if b"kept" in (each or b""))
    return written
