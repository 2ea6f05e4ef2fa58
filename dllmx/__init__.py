"""dllmx: experiment runner for inference of masked diffusion language models."""
