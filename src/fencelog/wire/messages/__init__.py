"""Every message but Produce and Fetch (see ``fencelog.wire.hot``), one module per request.

Generated from Kafka's own definitions and from ``fencelog/wire/definitions`` by
``tools/generate_messages.py``; import the module that you need. A field that a version lacks is
left out when it is written and has its default when it is read.
"""
