"""The search on GPUs: a Pallas kernel for Mosaic GPU, opt-in until it was measured on a card."""
