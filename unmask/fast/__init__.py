"""Speed beside the logic: compiled layers, CUDA graphs, kernels."""
