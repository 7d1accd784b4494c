"""One plaintext listener, or a refusal that says why."""

import pytest

from fencelog.settings.given import ConfigError
from fencelog.settings.joined import join
from fencelog.settings.listeners import Listener, listener_of
from fencelog.settings.sources import from_flags, from_properties


def listener(text: str, *, flag: str | None = None, key: str = "listeners") -> Listener | None:
    return listener_of(join([from_properties(text, "f"), from_flags({"--listen": flag})]), key)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9092", ("127.0.0.1", 9092)),
        ("PLAINTEXT://127.0.0.1:9092", ("127.0.0.1", 9092)),
        ("plaintext://127.0.0.1:9092", ("127.0.0.1", 9092)),
        ("PLAINTEXT://:0", ("127.0.0.1", 0)),
        ("[::1]:5", ("::1", 5)),
    ],
)
def test_an_address_has_a_host_and_a_port(text: str, address: tuple[str, int]) -> None:
    assert listener(f"listeners={text}") == ("PLAINTEXT", *address)
    assert listener("listeners=h:1", flag=text) == ("PLAINTEXT", *address)


@pytest.mark.parametrize("text", ["", "9092", "host", "host:", "host:x", "host:70000", "://h:1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--listen='.*': is not HOST:PORT"):
        listener("", flag=text)


@pytest.mark.parametrize("host", ["a..b", ".", "x" * 64, "ü..x"])
def test_what_can_be_no_host_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match=r"is not the name of a host"):
        listener("", flag=f"{host}:9092")


@pytest.mark.parametrize("host", ["x" * 63, "a.b.", "münchen", "::1"])
def test_what_may_be_a_host_is_left_to_the_resolver(host: str) -> None:
    assert listener("", flag=f"[{host}]:9092") == ("PLAINTEXT", host, 9092)


def test_a_listener_may_have_a_name_of_its_own() -> None:
    text = "listeners=INTERNAL://h:1\nlistener.security.protocol.map=INTERNAL:PLAINTEXT,X:SSL"
    assert listener(text) == ("INTERNAL", "h", 1)


def test_the_controllers_listener_is_passed_over() -> None:
    text = "controller.listener.names=CTL\nlisteners=CTL://h:1,PLAINTEXT://h:2"
    assert listener(text) == ("PLAINTEXT", "h", 2)


def test_nothing_is_advertised_where_nothing_is_said() -> None:
    assert listener("", key="advertised.listeners") is None
    assert listener("advertised.listeners=", key="advertised.listeners") is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("PLAINTEXT://h:1,SSL://h:2", "listener SSL asks for SSL, and there is no TLS"),
        ("SASL_PLAINTEXT://h:1", "listener SASL_PLAINTEXT asks for SASL_PLAINTEXT"),
        ("PLAINTEXT://h:1,PLAINTEXT://h:2", "fencelog has one listener, and this names 2"),
        ("INTERNAL://h:1", "add listener.security.protocol.map=INTERNAL:PLAINTEXT"),
        ("A://h:1\nlistener.security.protocol.map=A:SSL", "listener A asks for SSL"),
        ("A://h:1\nlistener.security.protocol.map=A", "'A' is not NAME:PROTOCOL"),
        ("A://h:1\nlistener.security.protocol.map=A:PLAIN", "'A:PLAIN' is not NAME:PROTOCOL"),
        ("C://h:1\ncontroller.listener.names=C", "has listeners of the controller only"),
    ],
)
@pytest.mark.parametrize("key", ["listeners", "advertised.listeners"])
def test_what_is_not_served_is_refused_and_never_dropped(key: str, text: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        listener(f"{key}={text}", key=key)
    assert told in str(refused.value)
    assert str(refused.value).startswith("f, line ")
