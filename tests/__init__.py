"""fencelog's tests: unit, contracts, conformance, cli, spark and the proofs."""
