"""Floor 1: semirings, their laws and their scalars."""
