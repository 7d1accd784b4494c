"""Bytes of the Kafka protocol and of fencelog's own requests, to values and back.

Pure: no socket, no clock, no file. Malformed bytes raise WireError and nothing else, and every
length field is checked against the bytes that remain. Bytes after the last field of a message are
ignored, because real clients send some.
"""
