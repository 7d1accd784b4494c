"""Kafka's own Java programs against a broker and its data directory."""
