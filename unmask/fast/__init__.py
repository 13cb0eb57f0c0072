"""Faster execution of models: compiled layers, CUDA graphs and kernels."""
