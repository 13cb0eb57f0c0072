"""The problems of mini-math: one file per kind."""
