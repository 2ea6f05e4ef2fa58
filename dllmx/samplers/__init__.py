"""Samplers: what may be committed where and when, one file each."""
