"""Measure parts of the engine on the device at hand; a figure is the median of several samples."""
