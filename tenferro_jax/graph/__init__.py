"""Floor 3: graphs, which do not know how they run, and their builder."""
