"""Kafka's transactions, one producer per transactional id (rules E2, E7, E9, E12, E14 to E17)."""
