"""The Java side of the tests: Kafka's own jars, and a process that runs their programs."""
