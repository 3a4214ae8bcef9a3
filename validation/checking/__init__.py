"""Predictions held against measurements: steps of an engine, experiments on a server, results of benchmark clients."""
