"""How long one step of an LLM inference server takes, and what that means for the people whose answers stream through it."""
