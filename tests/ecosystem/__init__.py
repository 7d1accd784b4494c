"""Frameworks and tools of Kafka's ecosystem, run as their users run them."""
