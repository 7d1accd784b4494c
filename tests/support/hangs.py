"""What no kill may leave behind: a hanging transaction."""

from fencelog.client.blocking import Client

TIMEOUT_S = 20.0


def hanging(address: str) -> list[str]:
    """Each open transaction that no coordinator lists, as text: ``txn find-hanging``."""
    with Client(address, request_timeout_s=TIMEOUT_S) as client:
        return [
            f"a transaction hangs on {each.partition} from offset {each.start_offset} on: {each}"
            for each in client.find_hanging_transactions()
        ]
