"""Measurements, each runnable with ``python -m benchmarks.NAME``."""
