"""What to listen on and what clients are told: one plaintext address, or a refusal with why."""

import re
from typing import NamedTuple

from fencelog.settings.given import Given
from fencelog.settings.hosts import is_host
from fencelog.settings.joined import Joined

PLAINTEXT = "PLAINTEXT"
PROTOCOLS = (PLAINTEXT, "SSL", "SASL_PLAINTEXT", "SASL_SSL")
ANY_HOST = "127.0.0.1"
"""What a listener without a host listens on."""
_PORT = "0*[0-9]{1,5}"


class Listener(NamedTuple):
    """One entry of ``listeners``."""

    name: str
    host: str
    port: int


def listener_of(joined: Joined, key: str) -> Listener | None:
    """The one address of ``listeners`` or ``advertised.listeners``, None where nobody set it.

    Entries of the controller's listeners are Kafka's own affair and are passed over. Raises
    ConfigError for another protocol than plaintext, and for more than one address.
    """
    given = joined.in_force(key)
    if given is None or (key == "advertised.listeners" and not given.text.strip()):
        return None
    controllers = set(_names(joined.listeners.get("controller.listener.names")))
    all_listeners = [_listener(given, part) for part in given.text.split(",")]
    served = [each for each in all_listeners if each.name not in controllers]
    for each in served:
        _check_protocol(given, each.name, joined.listeners.get("listener.security.protocol.map"))
    if not served:
        raise given.refused("has listeners of the controller only; add one for clients")
    if len(served) > 1:
        names = ", ".join(f"{each.name}://{each.host}:{each.port}" for each in served)
        raise given.refused(f"fencelog has one listener, and this names {len(served)}: {names}")
    return served[0]


def _names(given: Given | None) -> list[str]:
    return [] if given is None else [name.strip().upper() for name in given.text.split(",")]


def _listener(given: Given, text: str) -> Listener:
    name, scheme, address = text.strip().rpartition("://")
    host, colon, port = address.rpartition(":")
    if (scheme and not name) or not colon or not re.fullmatch(_PORT, port) or int(port) > 65535:
        raise given.refused("is not HOST:PORT or PLAINTEXT://HOST:PORT, for example 127.0.0.1:9092")
    host = host.strip("[]") or ANY_HOST
    if not is_host(host):
        raise given.refused(f"{host!r} is not the name of a host")
    return Listener(name.upper() or PLAINTEXT, host, int(port))


def _check_protocol(given: Given, name: str, mapped: Given | None) -> None:
    protocol = _protocols(mapped).get(name)
    if protocol is None:
        raise given.refused(
            f"listener {name} has no protocol; add listener.security.protocol.map={name}:PLAINTEXT"
        )
    if protocol != PLAINTEXT:
        raise given.refused(
            f"listener {name} asks for {protocol}, and there is no TLS and no authentication; "
            "write PLAINTEXT://HOST:PORT, on an address that you trust"
        )


def _protocols(mapped: Given | None) -> dict[str, str]:
    """The protocol of each listener's name. Raises ConfigError."""
    if mapped is None:
        return {name: name for name in PROTOCOLS}
    protocols = {}
    for part in mapped.text.split(","):
        name, colon, protocol = part.strip().upper().partition(":")
        if not colon or protocol not in PROTOCOLS:
            raise mapped.refused(f"{part.strip()!r} is not NAME:PROTOCOL, as INTERNAL:PLAINTEXT")
        protocols[name] = protocol
    return protocols
