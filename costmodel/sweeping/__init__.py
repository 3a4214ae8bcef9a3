"""Sweeps: many configurations at once, by array evaluation or by simulation on many cores."""
