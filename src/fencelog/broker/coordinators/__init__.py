"""Runs the coordinators: loads their shards and writes the markers of their decisions."""
