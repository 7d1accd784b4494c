"""Long proofs, run by ``./dev prove NAME``; a slice of each runs in the test suite."""
