"""The two kinds of error that a user can meet, and the exit status of each."""

from __future__ import annotations


class DllmxError(Exception):
    """Base of every error that is shown to the user as one or two lines, without a traceback."""

    exit_status = 1


class ConfigError(DllmxError):
    """The command or its configuration cannot work; nothing was computed. Exit status 2."""

    exit_status = 2


class RunError(DllmxError):
    """The configuration was sound, but the run failed. Exit status 1."""

    exit_status = 1
