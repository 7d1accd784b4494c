"""What the adapter of etcd is made of: messages, requests, watches. Imported only in a cluster."""

import os

# gRPC reads them when it is imported. Its own words on stderr are no part of our log; its handlers
# of forks would wait for its threads, and no child of a broker goes on with its channels.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
