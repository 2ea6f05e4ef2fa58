"""From the configuration to a checkpoint folder on this machine. Nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

from dllmx.config.schema import ModelConfig
from dllmx.errors import ConfigError

BUNDLED = Path(__file__).parent / "bundled"
BUNDLED_PREFIX = "bundled:"


def resolve_checkpoint(config: ModelConfig) -> Path:
    """The folder of ``model.path``, of a bundled model, or of the Hub cache, in this order.

    ConfigError where there is none; it says how to get the checkpoint.
    """
    folder = find_checkpoint(config)
    if folder is None:
        raise ConfigError(_absent(config))
    return folder


def find_checkpoint(config: ModelConfig) -> Path | None:
    """Like ``resolve_checkpoint``, but None where the checkpoint is not on this machine.

    A ``model.path`` that is no folder is an error all the same.
    """
    if config.path is not None:
        return _given_folder(config.path)
    if config.checkpoint.startswith(BUNDLED_PREFIX):
        folder = BUNDLED / config.checkpoint.removeprefix(BUNDLED_PREFIX)
        return folder if folder.is_dir() else None
    return _cached_folder(config.checkpoint)


def _given_folder(path: str) -> Path:
    folder = Path(path).expanduser()
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.is_file() else "does not exist"
        raise ConfigError(
            f"model.path={path} {what}; give a folder with config.json and *.safetensors"
        )
    return folder


def _cached_folder(repository: str) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repository, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    except HFValidationError as error:
        raise ConfigError(
            f"model.checkpoint={repository} is neither a Hub id (OWNER/NAME) nor bundled:NAME; "
            "for a local folder use model.path=DIR"
        ) from error


def _absent(config: ModelConfig) -> str:
    if config.checkpoint.startswith(BUNDLED_PREFIX):
        known = ", ".join(_bundled_names()) or "none"
        return (
            f"model={config.name}: there is no bundled model "
            f"{config.checkpoint.removeprefix(BUNDLED_PREFIX)!r}; bundled are: {known}"
        )
    return (
        f"model={config.name}: {config.checkpoint} is not on this machine. "
        f"Get it with: hf download {config.checkpoint}\n"
        "or give a folder with model.path=DIR, or use model.weights=random for speed work"
    )


def _bundled_names() -> list[str]:
    if not BUNDLED.is_dir():
        return []
    return sorted(folder.name for folder in BUNDLED.iterdir() if (folder / "config.json").is_file())
