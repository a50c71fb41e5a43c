"""The search on GPUs: a Pallas kernel for Mosaic GPU, off by default until it is measured on a
card.
"""
