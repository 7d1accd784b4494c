"""Benchmarks: one script per question, each figure beside a ceiling of the same run."""
