"""Measurements of an engine: what they are, and the files that they are kept in."""
