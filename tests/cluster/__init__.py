"""A cluster's parts against a real etcd; skipped where etcd cannot be had."""
