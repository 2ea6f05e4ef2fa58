from __future__ import annotations

from pathlib import Path

import pytest

from dllmx.config.schema import LoggerConfig
from dllmx.errors import ConfigError
from dllmx.runs.mirror import destination, logged_in

AUTO, WANDB, NONE = (LoggerConfig(name) for name in ("auto", "wandb", "none"))


@pytest.fixture(autouse=True)
def nobody_logged_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def test_without_an_account_auto_stays_local_and_says_how_to_log_in() -> None:
    place = destination(AUTO)
    assert place.mode is None
    assert "wandb login" in str(place.hint)


def test_without_an_account_wandb_is_offline() -> None:
    assert destination(WANDB).mode == "offline"


def test_none_goes_nowhere_silently() -> None:
    assert (destination(NONE).mode, destination(NONE).hint) == (None, None)


def test_a_key_in_the_environment_is_a_login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    assert destination(AUTO).mode == destination(WANDB).mode == "online"
    assert destination(NONE).mode is None


def test_an_entry_in_netrc_is_a_login_for_its_host_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine wandb.example.org login user password secret\n")
    (tmp_path / "netrc").chmod(0o600)
    assert not logged_in()
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert logged_in()


def test_a_broken_netrc_is_no_login(tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text("nonsense here\n")
    assert not logged_in()


@pytest.mark.parametrize(
    ("mode", "expected"), [("offline", "offline"), ("online", "online"), ("disabled", None)]
)
def test_the_mode_in_the_environment_wins(
    monkeypatch: pytest.MonkeyPatch, mode: str, expected: str | None
) -> None:
    monkeypatch.setenv("WANDB_MODE", mode)
    assert destination(AUTO).mode == expected


def test_an_unknown_mode_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "sometimes")
    with pytest.raises(ConfigError, match="WANDB_MODE=sometimes.*online, offline, disabled"):
        destination(WANDB)
