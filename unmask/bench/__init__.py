"""Timings of this library for `unmask bench`. Comparisons with other code live in benchmarks/."""
