"""Measure a real engine, read other people's measurements, fit, check. Imports the model; nothing in the model imports this."""
