"""Real engines, each imported only inside the functions that need it."""
