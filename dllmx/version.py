"""The version of dllmx; recorded with every run and part of a run's identity."""

VERSION = "0.1.0"
