"""What a stage and its processes agree on: environment variables and topics."""

STAGE_FOLDER = "FENCELOG_DEMO_STAGE_FOLDER"
MAX_OFFSETS = "FENCELOG_DEMO_MAX_OFFSETS"

FLIGHTS = "flights"
COMPARED = "delays-at-least-once"
PARTITIONS = {FLIGHTS: 3, "delays": 3, "delays-monthly": 1, COMPARED: 3}
"""The demo's topics. Three tasks per batch are more than one, and two cores finish them soon."""

STREAMS = tuple(name for name, count in PARTITIONS.items() if count > 1)
"""Those of them that ``--streams`` makes streams, which split and merge."""
