"""The shell of all coordinators: their shards in service, and what they decided carried out."""
