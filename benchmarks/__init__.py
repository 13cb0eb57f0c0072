"""Benchmarks that run from a clone: comparisons with other code, full-size models, the server under load."""
