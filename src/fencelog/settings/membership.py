"""Whether a broker is alone or one of a cluster, and what does not fit to that."""

from fencelog.settings.cluster_table import (
    CA_FILE,
    CERT_FILE,
    CLUSTER_SETTINGS,
    ETCD_KEYS,
    KEY_FILE,
    PASSWORD_FILE,
    PLACE,
    REPLICATION_FACTORS,
    USER,
)
from fencelog.settings.given import ConfigError
from fencelog.settings.joined import Joined
from fencelog.settings.metadata_url import SQLITE, EtcdUrl, parse_metadata_url

_TOGETHER = ((CERT_FILE, KEY_FILE), (KEY_FILE, CERT_FILE), (CERT_FILE, CA_FILE))
_BOTH = (*_TOGETHER, (USER, PASSWORD_FILE), (PASSWORD_FILE, USER))
"""What needs what."""


def cluster_of(joined: Joined) -> EtcdUrl | None:
    """Return where the cluster's metadata is; None for a broker alone.

    Adds to the notices what has no effect for it. Raises ConfigError.
    """
    place = joined.in_force(PLACE)
    try:
        url = parse_metadata_url(joined.values.get(PLACE, SQLITE))
    except ValueError as error:
        assert place is not None, "the default is valid"
        raise place.refused(str(error)) from None
    if url is None:
        _check_alone(joined)
    else:
        _check_member(joined)
    return url


def _check_alone(joined: Joined) -> None:
    without_effect = []
    for key in (setting.key for setting in CLUSTER_SETTINGS if setting.key != PLACE):
        given = joined.in_force(key)
        if given is None:
            continue
        if key in ETCD_KEYS:
            raise given.refused(f"there is no etcd; set {PLACE}=etcd://HOST:PORT/NAME, too")
        if key not in REPLICATION_FACTORS:
            without_effect.append(given.place)
        elif joined.values[key] != "1":
            raise given.refused(
                "expected 1: fencelog is one broker, which keeps one copy of each partition, "
                f"unless {PLACE} is an etcd"
            )
    if without_effect:
        joined.notices.append(f"without a cluster no effect has: {', '.join(without_effect)}")


def _check_member(joined: Joined) -> None:
    if "node.id" not in joined.values:
        raise ConfigError("a broker of a cluster needs a number of its own: --node-id, or node.id")
    for key, other in _BOTH:
        given = joined.in_force(key)
        if given is not None and joined.values[key] and not joined.values.get(other):
            raise given.refused(f"it needs {other}, too")
