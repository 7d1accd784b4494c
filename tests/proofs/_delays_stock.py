"""Stock clients whose connections are held by a proxy between them and a broker.

One schedule: a client makes some transactions of two records, on two topics. The connection that
carries a chosen kind of request is held from there on and the client cut off, so that it goes on by
its own rules; the held bytes arrive in the midst of its next transaction (``_chaos_holds``).
"""

import json
import random
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.proofs._chaos_holds import ADD_PARTITIONS, END, PRODUCE
from tests.proofs._chaos_rig import ProxyProcess
from tests.proofs._compare import Written, check_ends, compare_transactions
from tests.support.broker import BrokerProcess
from tests.support.stock import CLIENTS, Confluent, TransactionalWriter

KINDS = (PRODUCE, ADD_PARTITIONS, END)
TRANSACTIONS = 4
TOPICS = 2
HELD_MOST_S = 20.0


@dataclass(kw_only=True)
class Stock:
    """What the schedules of one client came to."""

    client: str
    schedules: int = 0
    late: int = 0
    """Requests that arrived in a later transaction than their own."""
    committed: int = 0
    aborted: int = 0
    problems: list[str] = field(default_factory=list)


def play_stock(each: int, seed: int) -> list[Stock]:
    """So many schedules of each client."""
    if not each:
        return []
    with tempfile.TemporaryDirectory(prefix="fencelog-delays-") as name:
        return [
            play_client(client, each, seed, Path(name) / client.partition("-")[0])
            for client in CLIENTS
        ]


def play_client(client: str, count: int, seed: int, folder: Path) -> Stock:
    """Schedules of one client before a broker of its own."""
    folder.mkdir()
    stock = Stock(client=client, schedules=count)
    with (
        ProxyProcess(seed, folder / "proxy.log") as proxy,
        BrokerProcess(
            folder / "data", settings=f"advertised.listeners=PLAINTEXT://127.0.0.1:{proxy.port}\n"
        ) as broker,
    ):
        proxy.tell("upstream", port=broker.port)
        chosen = random.Random(f"{seed}-{client}")
        for number in range(count):
            _play(stock, proxy, broker.address, number, chosen)
        stock.late = sum(
            count for what, count in proxy.tell("counts").items() if what.endswith(LATE)
        )
    return stock


LATE = "in a later transaction"


def _play(
    stock: Stock, proxy: ProxyProcess, broker: str, number: int, chosen: random.Random
) -> None:
    client, address = CLIENTS[stock.client], f"127.0.0.1:{proxy.port}"
    name = f"stock-{number}"
    written = Written()
    writer: TransactionalWriter | None = None
    held_at = chosen.randrange(TRANSACTIONS - 1)
    for transaction in range(TRANSACTIONS):
        if writer is None:
            writer = client.transactional(address, name)
        if transaction == held_at:
            order = {"kind": chosen.choice(KINDS), "wait": False, "most_s": HELD_MOST_S}
            proxy.tell("hold", **order)
        if not _transaction(writer, name, transaction, chosen.random() < 0.7, written):
            with suppress(Exception):
                writer.close()
            writer = None
    proxy.tell("heal")
    # A successor ends what the last one may have left open.
    (writer or client.transactional(address, name)).close()
    _check(stock, broker, name, written)


def _transaction(
    writer: TransactionalWriter, name: str, number: int, commits: bool, written: Written
) -> bool:
    """One transaction; whether its producer may go on."""
    written.unknown.add(number)
    try:
        writer.begin()
        for index in range(TOPICS):
            value = json.dumps({"txn": number, "index": index}).encode()
            writer.send(f"{name}-{index}", value)
        if commits:
            writer.commit()
        else:
            writer.abort()
    except Exception as error:  # noqa: BLE001 - each library has its own; the check decides
        written.replaced.append(repr(error))
        return False
    written.unknown.remove(number)
    (written.committed if commits else written.aborted).add(number)
    return True


def _check(stock: Stock, broker: str, name: str, written: Written) -> None:
    found = {
        index: [
            (seen.offset, seen.value or b"") for seen in Confluent().read(broker, f"{name}-{index}")
        ]
        for index in range(TOPICS)
    }
    problems, _ = compare_transactions(written, found, TOPICS)
    for index in range(TOPICS):
        problems += check_ends(broker, f"{name}-{index}", 1)
    stock.problems += [f"{stock.client}, schedule {name}: {each}" for each in problems]
    stock.committed += len(written.committed)
    stock.aborted += len(written.aborted)
