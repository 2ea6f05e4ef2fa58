"""Hydra configuration groups of dllmx."""
