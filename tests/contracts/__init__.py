"""One suite per port: every adapter, and every simulated stand-in, passes it."""
