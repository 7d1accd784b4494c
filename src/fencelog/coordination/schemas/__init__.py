"""Keys and values of the coordinators' records, one module per kind of record.

Generated from ``fencelog/coordination/definitions`` by ``tools/generate_messages.py``. The modules
beside the shards map them to domain values.
"""
