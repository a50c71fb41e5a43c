"""Kernels of one step in standard ops, for every platform, and on GPUs."""
