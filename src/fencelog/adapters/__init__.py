"""Adapters: the ports on a real machine."""
