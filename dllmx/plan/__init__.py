"""Predicts what a decode costs on a GPU before it is run, without weights."""
