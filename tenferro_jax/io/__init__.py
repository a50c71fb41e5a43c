"""Floor 7: programs and graphs as files."""
