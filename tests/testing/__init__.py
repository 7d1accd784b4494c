"""The pytest plugin and its broker, asked by stock clients."""
