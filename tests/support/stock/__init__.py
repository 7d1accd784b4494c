"""Stock Kafka clients behind one small interface, so that a claim is written once for all three.

Nothing here knows fencelog: the clients are confluent-kafka (librdkafka), kafka-python and aiokafka
as PyPI has them. A client that learns that it is a zombie raises ``Fenced``.
"""

from tests.support.stock.aio import Aio
from tests.support.stock.confluent import Confluent
from tests.support.stock.interface import (
    CODECS,
    DEADLINE_S,
    Fenced,
    Seen,
    StockClient,
    ToSend,
    TransactionalWriter,
)
from tests.support.stock.kafka_python import KafkaPython

__all__ = [
    "CLIENTS",
    "CODECS",
    "DEADLINE_S",
    "Confluent",
    "Fenced",
    "Seen",
    "StockClient",
    "ToSend",
    "TransactionalWriter",
]

CLIENTS: dict[str, StockClient] = {
    "confluent-kafka": Confluent(),
    "kafka-python": KafkaPython(),
    "aiokafka": Aio(),
}
