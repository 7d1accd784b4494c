"""Connections between the brokers of a cluster: the proof, the order of connections, liveness."""
