"""Floor 1: the vocabulary of standard tensor ops. `vocabulary.py` is the list."""
