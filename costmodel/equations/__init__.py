"""The equations, written once: plain arithmetic on floats, float64 arrays or SymPy expressions."""
