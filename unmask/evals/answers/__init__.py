"""Read the answer from a text, one small file per kind of answer. Independent of benchmarks."""
