"""The recipe that trains the bundled tiny models."""
