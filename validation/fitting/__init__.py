"""Fits of calibrations to measurements: the same equations as predictions, with symbols for what is fitted."""
