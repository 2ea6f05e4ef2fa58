"""No cache: every forward computes every row."""

from __future__ import annotations

from dataclasses import dataclass

from dllmx.engine.interface import CachePolicy, Plan, View


@dataclass(frozen=True)
class Config:
    """No settings."""

    name: str


class Cache(CachePolicy):
    """All rows, nothing stored."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def plan(self, view: View) -> Plan:
        """All rows."""
        return Plan(reason="full")
