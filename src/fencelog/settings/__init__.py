"""Settings of broker and topics: one table of all of them, and what is made from it.

``table`` has the settings, ``kafka_names`` what else a Kafka broker's file may say, ``kinds`` how a
value is read, ``names`` what a name means, ``fields`` how a configuration gets its defaults,
``sources`` and ``joined`` how file, environment and flags become one set of values.
"""
