"""What may be the name of a host."""


def is_host(text: str) -> bool:
    """Whether it can be looked up at all: a name whose labels have 1 to 63 bytes, or an address."""
    try:
        text.encode("idna")
    except UnicodeError:
        return False
    return bool(text)
