"""The decode loop: sampler x cache policy x commit rule."""
