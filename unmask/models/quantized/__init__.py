"""Models with weights of 8 and 4 bits: one file per format, and one that swaps the layers of a model."""
