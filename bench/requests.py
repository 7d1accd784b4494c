"""How many requests of one record each does one core of the broker take?"""

from contextlib import ExitStack
from statistics import median

from bench._pipelined import connect, drive, one_record_frames
from bench._processes import Rig, cpu_s, scratch
from bench._report import Figure, Report, sized
from bench._stock import Load, create_topic
from tests.support.broker import BrokerProcess

VALUE = b"0123456789" * 5
DEPTHS = (64, 5)
"""Requests without an answer yet: enough to keep the broker busy, and as many as librdkafka has."""
STOCK = {"linger.ms": 0, "batch.num.messages": 1, "max.in.flight": 5}
METHOD = (
    "Produce requests of one idempotent record (50 bytes, acks=all, `os` durability) on one "
    "connection, made beforehand and sent by a client that hardly costs anything, and by "
    "confluent-kafka (batch.num.messages=1), alternating between our broker and a receiver "
    "that only says yes. A core's rate is one second by the broker's CPU time per request (/proc, "
    "kernel time for the network and the file included); medians, so other load hardly matters."
)


def main() -> None:
    """Measure in alternating rounds."""
    report = Report("requests", "requests of one record", METHOD)
    rounds, count = sized(7, 2), sized(8_000, 1_000)
    costs: dict[tuple[str, str], list[float]] = {}
    rates: dict[tuple[str, str], list[float]] = {}
    producer_id = 1000
    with scratch() as place, ExitStack() as stack:
        brokers = {
            "ours": stack.enter_context(BrokerProcess(place / "ours")),
            "receiver": stack.enter_context(Rig("receiver", place / "receiver")),
        }
        create_topic(brokers["ours"].address)
        loads = {name: Load(broker.address, STOCK) for name, broker in brokers.items()}
        sockets = {name: connect(broker.address) for name, broker in brokers.items()}
        for number in range(rounds + 1):  # the first one warms up
            for name, broker in brokers.items():
                for depth in DEPTHS:
                    producer_id += 1
                    frames = one_record_frames(VALUE, producer_id, count)
                    before = cpu_s(broker.pid)
                    seconds = drive(sockets[name], frames, depth)
                    if number:
                        what = (name, f"{depth} open")
                        costs.setdefault(what, []).append((cpu_s(broker.pid) - before) / count)
                        rates.setdefault(what, []).append(count / seconds)
                before = cpu_s(broker.pid)
                sent = loads[name].send(VALUE, count)
                if number:
                    what = (name, "stock")
                    spent = cpu_s(broker.pid) - before
                    costs.setdefault(what, []).append(spent / sent.requests)
                    rates.setdefault(what, []).append(sent.requests / sent.seconds)
    titles = {"64 open": "64 open at a time", "5 open": "5 open", "stock": "by confluent-kafka"}
    for kind, title in titles.items():
        ours, receiver = median(costs["ours", kind]), median(costs["receiver", kind])
        report.add(
            Figure(
                name=f"requests a second and core, {title}",
                value=1 / ours,
                unit="/s",
                ceiling=1 / receiver,
                ceiling_name="receiver",
                goal=">= 15,000 /s",
                met=1 / ours >= 15_000,
            )
        )
        report.note(
            f"{title}: {1e6 * ours:.0f} µs of the broker's CPU a request (receiver "
            f"{1e6 * receiver:.0f}); {median(rates['ours', kind]):,.0f} requests a second seen by "
            f"the client beside it."
        )
    report.finish()


if __name__ == "__main__":
    main()
