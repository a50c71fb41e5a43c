"""Floor 7: programs as files."""
