"""Bytes of the Kafka protocol and of fencelog's own requests, to values and back.

Pure: no socket, no clock, no file. Anything malformed is a WireError and nothing else, whatever
a peer sends, and no length field is believed before it is held against the bytes that remain.
Only bytes behind the last field of a message are let pass, because real clients send some.
"""
