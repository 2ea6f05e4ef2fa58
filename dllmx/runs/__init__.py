"""Run folders, resume, logging and reports."""
