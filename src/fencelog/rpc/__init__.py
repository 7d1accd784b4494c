"""Requests to a broker, from a client or from another broker."""
