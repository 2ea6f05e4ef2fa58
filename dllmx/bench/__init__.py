"""Benchmarks: ratios of things timed in one run."""
