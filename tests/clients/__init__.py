"""Kafka clients that no Python environment brings: kcat, and three from npm."""
