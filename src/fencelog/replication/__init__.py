"""Replication of one partition: what leaders and followers decide, without waits or files.

``leader`` counts acknowledgements and proposes the in-sync replicas, ``follower`` decides what to
do with an answer, ``session`` says what is news on the stream between two brokers, and ``proof``
begins each connection between brokers.
"""
