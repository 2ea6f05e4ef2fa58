"""Commit rules: which predicted tokens are committed or re-masked, one file each."""
