"""The standard tensor ops; `vocabulary.py` lists them."""
