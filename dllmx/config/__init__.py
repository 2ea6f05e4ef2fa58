"""Schema, composition and validation of a run's configuration."""
