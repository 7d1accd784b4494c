"""Adapters: what stands behind the ports on a real machine."""
