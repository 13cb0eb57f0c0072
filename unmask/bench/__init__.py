"""Timings of this library, behind `unmask bench`. Comparisons with other code live in benchmarks/."""
