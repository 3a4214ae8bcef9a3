"""Simulation of continuous batching: who waits for whom, token by token, on the step times of the model."""
