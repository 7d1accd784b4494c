"""Replicas of this broker: streams from leaders, streams to followers, roles and in-sync sets."""
