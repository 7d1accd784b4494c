"""fencelog: an exactly-once event log that speaks the Kafka protocol."""
