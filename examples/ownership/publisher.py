"""Publish the rows of a table in their order: several processes stand by, one is active.

    python publisher.py -b localhost:9092 outbox.db changes/0

The table is ``outbox(id, payload)``, in a file of SQLite or, by a URL ``postgresql://…``, in
PostgreSQL. Rows have to become visible in the order of their ids: let several writers of PostgreSQL
take turns by a lock.

The active process owns ``outbox`` and the partition ``changes/0``. What is published is known from
the partition itself; the table ``published`` only says from where on to look, and up to which row
others may delete. It is updated by a compare-and-set with the token.
"""

import argparse
import signal
import sqlite3
import sys
import time

import fencelog
from fencelog.errors import OwnershipLostError
from fencelog.types import TopicPartition

POLL_S = 0.1
TABLES = """
CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY, payload TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS published (
    name TEXT PRIMARY KEY, id BIGINT NOT NULL, next_offset BIGINT NOT NULL, token BIGINT NOT NULL
);
"""
TAKE_OVER = """
INSERT INTO published (name, id, next_offset, token) VALUES (?, 0, 0, ?)
ON CONFLICT (name) DO UPDATE SET token = excluded.token WHERE published.token <= excluded.token
"""
MARK = "UPDATE published SET id = ?, next_offset = ? WHERE name = ? AND token = ?"


class NewerOwnerError(Exception):
    """The database has a higher token: this process owns nothing any more."""


class Database:
    """The two tables, in SQLite or PostgreSQL; each statement is a transaction."""

    def __init__(self, url, name):
        self.name = name
        self.is_postgresql = url.startswith("postgresql://")
        if self.is_postgresql:
            import psycopg

            self.connection = psycopg.connect(url, autocommit=True)
        else:
            self.connection = sqlite3.connect(url, isolation_level=None, timeout=60)
            self.connection.execute("PRAGMA journal_mode = WAL")  # readers do not block the writer
        for statement in TABLES.split(";"):
            if statement.strip():
                self.execute(statement)

    def execute(self, statement, *values):
        return self.connection.execute(
            statement.replace("?", "%s") if self.is_postgresql else statement, values
        )

    def take_over(self, token):
        """From here on no older token changes anything. Raises NewerOwnerError.

        Returns the last row that is known to be published, and the offset to look from.
        """
        self.only_if_newest(token, TAKE_OVER, self.name, token)
        return self.execute(
            "SELECT id, next_offset FROM published WHERE name = ?", self.name
        ).fetchone()

    def mark(self, token, row, next_offset):
        """Everything up to this row is published. Raises NewerOwnerError."""
        self.only_if_newest(token, MARK, row, next_offset, self.name, token)

    def only_if_newest(self, token, statement, *values):
        """Compare and set: the statement changes a row only where no token is newer."""
        if self.execute(statement, *values).rowcount == 0:
            raise NewerOwnerError(f"'{self.name}' has a newer owner than token {token}")

    def rows_after(self, row):
        return self.execute(
            "SELECT id, payload FROM outbox WHERE id > ? ORDER BY id LIMIT 100", row
        ).fetchall()


def publish(claim, database, output, partition):
    """Go on exactly after what is in the partition, until the claim is lost."""
    token = claim.token(database.name)
    last, next_offset = database.take_over(token)
    # The one before may have published rows and died before it marked them.
    for record in claim.fetch(partition, next_offset, claim.fence_offset(output)):
        last = int(record.key)
    print(f"publishing after row {last}", flush=True)
    with claim.producer() as producer:
        while True:
            with claim.guard():
                rows = database.rows_after(last)
            for row, payload in rows:
                producer.send(
                    partition.topic,
                    payload.encode(),
                    key=str(row).encode(),
                    partition=partition.partition,
                )
                last = row
            for delivery in producer.flush():
                next_offset = delivery.base_offset + delivery.count
            if rows:
                print(f"published up to row {last}", flush=True)
                database.mark(token, last, next_offset)
            else:
                time.sleep(POLL_S)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-b", "--bootstrap-server", default="localhost:9092")
    parser.add_argument("--lease-s", type=float, default=10.0)
    parser.add_argument("database", help="a file of SQLite, or postgresql://…")
    parser.add_argument("output", help="the partition to write to, TOPIC/NUMBER")
    options = parser.parse_args()
    topic, _, number = options.output.rpartition("/")
    partition = TopicPartition(topic, int(number))
    database = Database(options.database, "outbox")
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: sys.exit())  # so that the claim is released
    resources = [database.name, options.output]
    with (
        fencelog.connect(options.bootstrap_server) as log,
        log.own(resources, wait=True, lease_s=options.lease_s) as claim,
    ):
        publish(claim, database, options.output, partition)


if __name__ == "__main__":
    try:
        main()
    except (OwnershipLostError, NewerOwnerError) as error:
        sys.exit(str(error))
