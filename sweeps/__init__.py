"""One YAML a table or figure of a paper."""
