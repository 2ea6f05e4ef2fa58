"""A run folder: what lies in it, and how it is read back after a run ended in any way.

``config.yaml`` (resolved), ``run.json`` (versions, device, first sample), ``samples.jsonl`` (one
line a finished sample), ``trace.jsonl.gz`` (only with ``trace=true``), ``metrics.json`` (only once
the run is finished), ``error.txt`` (only after a failure).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dllmx.errors import ConfigError, RunError
from dllmx.metrics.samples import SampleRecord, sample_from_json
from dllmx.runs import files


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run at ``path``; nothing needs to exist yet."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.yaml"

    @property
    def description(self) -> Path:
        """Versions, device, git state, protocol and first sample."""
        return self.path / "run.json"

    @property
    def samples(self) -> Path:
        """One line a finished sample."""
        return self.path / "samples.jsonl"

    @property
    def trace(self) -> Path:
        """The steps of every sample, one gzip member a sample."""
        return self.path / "trace.jsonl.gz"

    @property
    def metrics(self) -> Path:
        """The metrics; exists once the run is finished."""
        return self.path / "metrics.json"

    @property
    def error(self) -> Path:
        """Why the last attempt failed; absent when it did not."""
        return self.path / "error.txt"

    @property
    def finished(self) -> bool:
        """Whether every sample is decoded and the metrics are written."""
        return self.metrics.exists()

    @property
    def status(self) -> str:
        """``finished``, ``failed`` or ``unfinished``."""
        if self.finished:
            return "finished"
        return "failed" if self.error.exists() else "unfinished"

    def clear(self) -> None:
        """Delete the results of earlier attempts."""
        for path in (self.metrics, self.samples, self.trace, self.description, self.error):
            path.unlink(missing_ok=True)

    def append(self, records: Sequence[SampleRecord]) -> None:
        """Add finished samples; they are on disk when this returns."""
        files.append_synced(self.samples, "".join(r.to_line() for r in records).encode())

    def read_samples(self) -> list[SampleRecord]:
        """The finished samples, without changing the file; a half-written last line is left out."""
        return [record for record, _ in self._intact_lines()]

    def recover_samples(self) -> list[SampleRecord]:
        """The finished samples, after cutting what a killed process left half-written."""
        intact = self._intact_lines()
        if self.samples.exists():
            files.truncate(self.samples, sum(length for _, length in intact))
        records = [record for record, _ in intact]
        if self.trace.exists():
            files.truncate(self.trace, max((r.trace_end or 0 for r in records), default=0))
        return records

    def read_json(self, path: Path) -> Any:
        """Parsed content of one of this folder's JSON files. RunError when it cannot be read."""
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(f"cannot read {path}: {error}") from None

    def read_config(self) -> dict[str, Any]:
        """The recorded configuration. RunError when it cannot be read."""
        from omegaconf import OmegaConf
        from yaml import YAMLError

        try:
            stored = OmegaConf.to_container(OmegaConf.load(self.config))
        except (OSError, YAMLError) as error:
            raise RunError(f"cannot read {self.config}: {error}") from None
        return {str(k): v for k, v in stored.items()} if isinstance(stored, dict) else {}

    def _intact_lines(self) -> list[tuple[SampleRecord, int]]:
        """Every intact record with the length in bytes of its line. RunError: damage in between."""
        data = self.samples.read_bytes() if self.samples.exists() else b""
        lines = data.splitlines(keepends=True)
        intact = []
        for number, line in enumerate(lines, start=1):
            record = _parse_line(line)
            if record is not None:
                intact.append((record, len(line)))
            elif number < len(lines):
                raise RunError(
                    f"{self.samples} line {number} is damaged. "
                    f"Decode all again with overwrite=true, or delete the folder."
                )
        return intact


def _parse_line(line: bytes) -> SampleRecord | None:
    if not line.endswith(b"\n"):
        return None
    try:
        return sample_from_json(json.loads(line))
    except ValueError:
        return None


def find_run(name: str, output: Path) -> RunFolder:
    """The run folder called ``name``: a path, or a unique prefix of a name under ``output``/runs.

    Raises ConfigError when nothing or more than one folder matches.
    """
    if RunFolder(Path(name)).config.exists():
        return RunFolder(Path(name))
    runs = output / "runs"
    matches = sorted(p for p in runs.glob("*") if name and p.name.startswith(name))
    exact = [path for path in matches if path.name == name]
    if len(exact or matches) == 1:
        return RunFolder((exact or matches)[0])
    if matches:
        names = ", ".join(path.name for path in matches[:6])
        raise ConfigError(f"{name} fits {len(matches)} runs: {names}. Give more of the name.")
    raise ConfigError(f"no run called {name} in {runs}. See what is there: ls {runs}")
