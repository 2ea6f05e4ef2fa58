from __future__ import annotations

from pathlib import Path

import pytest

from dllmx.cli.foreign_config import check_foreign_config
from dllmx.cli.main import run_command_line

CODE = """# @package _global_
hydra:
  callbacks:
    x: {_target_: numpy.testing.runstring, astr: "open('TOUCHED', 'w')", dict: {}}
"""


def write(folder: Path, place: str, text: str) -> Path:
    path = folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize("flags", [["--config-dir", "{}"], ["--config-dir={}"]])
def test_a_file_that_would_run_code_is_refused_before_hydra_reads_it(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    touched = tmp_path / "touched"
    write(tmp_path / "conf", "policy/e.yaml", CODE.replace("TOUCHED", str(touched)))
    flags = [flag.format(tmp_path / "conf") for flag in flags]
    assert run_command_line(["run", *flags, "policy=e", "logger=none"]) == 2
    assert "refused" in capsys.readouterr().err
    assert not touched.exists()


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("hydra/callbacks/x.yaml", "a: 1"),
        ("policy/a.yaml", "# @package hydra.callbacks\nx: 1"),
        ("policy/b.yaml", "commit: {x: {_target_: os.system}}"),
        ("policy/c.yaml", "defaults: [{'/hydra/launcher': x}]"),
        ("policy/d.yaml", "hydra.callbacks: 1"),
        ("policy/e.yaml", "x: !!python/object/apply:os.system [ls]"),
    ],
)
def test_every_way_to_hydras_settings_is_refused(place: str, text: str, tmp_path: Path) -> None:
    write(tmp_path, place, text)
    with pytest.raises(Exception, match="is refused"):
        check_foreign_config([f"hydra.searchpath=[file://{tmp_path}]"])


def test_a_policy_of_ones_own_is_welcome(tmp_path: Path) -> None:
    policy = "# @package _global_\ndefaults:\n  - override /cache: dual\npolicy: {name: mine}\n"
    write(tmp_path, "policy/mine.yaml", policy)
    check_foreign_config(["--config-dir", str(tmp_path)])
