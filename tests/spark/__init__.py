"""Spark against a real broker."""
