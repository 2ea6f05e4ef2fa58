"""``python -m dllmx``: the same as ``dllmx``."""

from dllmx.cli.main import main

main()
