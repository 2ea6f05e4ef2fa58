"""Shared kernels, each beside its plain PyTorch twin."""
