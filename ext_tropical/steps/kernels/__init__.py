"""Kernels of one step: in standard ops for every platform, and for NVIDIA GPUs (`mosaic`)."""
