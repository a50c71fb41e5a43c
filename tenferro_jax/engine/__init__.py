"""Floor 6: compile a graph once, run it many times."""
