"""What a model is made of: layer kinds, dimensions, weight formats and parameter counts, read from a ``config.json``."""
