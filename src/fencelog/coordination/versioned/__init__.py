"""Versioned transactions: one decision over many producers, per app and version (V1 to V8)."""
