"""Exactly once into a broker without versioned transactions: the driver commits (ADR 18).

Tasks encode record batches and hand them over; the driver writes all of them, and a record of what
it wrote, in one Kafka transaction. ``ledger`` decides, ``commit`` does.
"""
