"""The texts of failed requests: what was requested, what the broker said, and what to do."""

from fencelog.errors import ErrorCode, FencelogError, OwnershipLostError, RequestError

ADVICE = {
    ErrorCode.NETWORK_EXCEPTION: "check that the broker is running at this address",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "create it first, or check the name",
    ErrorCode.OFFSET_OUT_OF_RANGE: "the offset is below the log start or above the end",
    ErrorCode.GROUP_ID_NOT_FOUND: "the group does not exist",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "the id is unknown",
    ErrorCode.MESSAGE_TOO_LARGE: "raise the topic's max.message.bytes, or write smaller records",
    ErrorCode.INVALID_PRODUCER_EPOCH: "a newer producer has the same id; this one must stop",
    ErrorCode.PRODUCER_FENCED: "a newer producer has the same id; this one must stop",
    ErrorCode.INVALID_TXN_STATE: "the transaction is no longer open; begin a new one",
    ErrorCode.TRANSACTION_ABORTABLE: "abort the transaction and begin a new one",
    ErrorCode.RUN_FENCED: "a newer run of this app has started; this one must stop",
    ErrorCode.VERSION_CONFLICT: (
        "this version was committed with other input; the checkpoint was restored or replaced"
    ),
    ErrorCode.STALE_VERSION: "a later version is committed; the checkpoint is too old",
    ErrorCode.VERSION_GAP: "earlier versions are missing; check that the checkpoint is this app's",
    ErrorCode.APP_IN_USE: "another query uses this app; choose another, or set takeover=true",
    ErrorCode.TRANSACTION_ABORTED: "it timed out or was aborted; write the batch again",
    ErrorCode.KAFKA_STORAGE_ERROR: "the broker's disk failed or is full; see the broker's log",
    ErrorCode.TOPIC_ALREADY_EXISTS: "choose another name, or delete it first",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "earlier records may be missing; write them again",
    ErrorCode.UNKNOWN_MEMBER_ID: "the request is from no member of the group",
    ErrorCode.NON_EMPTY_GROUP: "the group has members; stop them first",
    ErrorCode.UNSUPPORTED_VERSION: "the broker does not support it: it is too old, or not fencelog",
}


def failure(code: ErrorCode, what: str, detail: str | None = None) -> RequestError:
    """An error for this code: what was requested, the broker's message, what to do.

    An OwnershipLostError for OWNER_FENCED, for every other code a RequestError.
    """
    parts = [what]
    if detail:
        # RequestError appends the code; a broker's message may end with it already.
        parts.append(detail.removesuffix(f" ({code.name})"))
    if advice := ADVICE.get(code):
        parts.append(advice)
    kind = OwnershipLostError if code is ErrorCode.OWNER_FENCED else RequestError
    return kind(code, ": ".join(parts[:2]) + "".join(f"; {part}" for part in parts[2:]))


def client_closed() -> FencelogError:
    """The error of everything that is asked of a closed client."""
    return FencelogError("this client is closed; create a new one")
