"""Mirror finished runs to Weights & Biases. The local files stay the source of truth."""

from __future__ import annotations

import netrc
import os
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlparse

from dllmx.config.schema import LoggerConfig
from dllmx.errors import ConfigError
from dllmx.metrics.samples import SampleRecord
from dllmx.metrics.summary import ratio
from dllmx.runs.execute import Outcome
from dllmx.runs.files import write_json

if TYPE_CHECKING:
    from wandb import Table

MARK = "wandb.json"
"""File of a run folder that says where the run was mirrored."""

HOST = "api.wandb.ai"
Mode = Literal["online", "offline"]
MODES: tuple[Mode, ...] = ("online", "offline")
DISABLED = "disabled"
LOGIN_HINT = "results are kept in local files only; to mirror them to W&B: wandb login"
TABLE_COLUMNS = ("id", "correct", "answer", "reference", "text", "nfe", "tokens_non_eos", "tpf")


@dataclass(frozen=True, slots=True)
class Destination:
    """Where runs are mirrored. ``mode``: online, offline, or None for nowhere; ``hint``: why."""

    mode: Mode | None
    logger: LoggerConfig
    hint: str | None = None


def destination(logger: LoggerConfig) -> Destination:
    """Decide where this run is mirrored, without any network access.

    ``WANDB_MODE`` (online, offline, disabled) wins over what is found. Raises ConfigError when
    ``logger=wandb`` is chosen and wandb is not installed.
    """
    if logger.name == "none":
        return Destination(None, logger)
    if find_spec("wandb") is None:
        if logger.name == "wandb":
            raise ConfigError("logger=wandb needs the package wandb: pip install wandb")
        return Destination(None, logger, LOGIN_HINT)
    chosen = os.environ.get("WANDB_MODE")
    if chosen:
        return _chosen_destination(chosen, logger)
    if logged_in():
        return Destination("online", logger)
    if logger.name == "wandb":
        return Destination("offline", logger)
    return Destination(None, logger, LOGIN_HINT)


def _chosen_destination(mode: str, logger: LoggerConfig) -> Destination:
    if mode == DISABLED:
        return Destination(None, logger)
    for known in MODES:
        if mode == known:
            return Destination(known, logger)
    allowed = ", ".join((*MODES, DISABLED))
    raise ConfigError(f"WANDB_MODE={mode} is not a mode. Choose one of: {allowed}.")


def logged_in() -> bool:
    """Whether W&B credentials are present: a key in the environment or in the netrc file."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    path = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    host = urlparse(os.environ.get("WANDB_BASE_URL", f"https://{HOST}")).hostname or HOST
    try:
        return netrc.netrc(path).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def mirror(outcome: Outcome, place: Destination, group: str | None) -> str | None:
    """Mirror a finished run, once. Returns a line for the user, or None.

    A failure is such a line too: the run itself is complete, whatever W&B does.
    """
    mark = outcome.run.folder.path / MARK
    if place.mode is None or mark.exists():
        return place.hint
    try:
        address = _upload(outcome, place, group)
    except Exception as error:  # noqa: BLE001  whatever the mirror does, the run has its results
        reason = str(error).strip().splitlines() or [type(error).__name__]
        return f"W&B failed ({reason[0]}); the local files are complete"
    write_json(mark, {"mode": place.mode, "address": address})
    return f"W&B ({place.mode}): {address}"


def _upload(outcome: Outcome, place: Destination, group: str | None) -> str:
    import wandb

    config = outcome.run.config
    run = wandb.init(
        mode=place.mode,
        project=place.logger.project,
        entity=place.logger.entity,
        name=outcome.run.name,
        group=group,
        job_type="run",
        tags=[config.model.name, config.policy.name, config.task.name],
        config=asdict(config),
        dir=str(outcome.run.folder.path),
        reinit="finish_previous",
        settings=_settings(),
    )
    try:
        run.log({"samples": _samples_table(outcome.run.folder.read_samples())})
        run.summary.update(outcome.metrics.to_dict())
        offline = f"wandb sync {Path(run.dir).parent}"
        return str(run.url) if place.mode == "online" else offline
    finally:
        run.finish()


def _settings() -> Any:
    """Settings that keep W&B out of the terminal, the source tree and the machine."""
    import wandb

    return wandb.Settings(
        console="off",
        silent=True,
        disable_git=True,
        disable_code=True,
        save_code=False,
        x_disable_stats=True,
    )


def _samples_table(records: list[SampleRecord]) -> Table:
    import wandb

    rows = [
        [
            record.id,
            record.correct,
            record.answer,
            str(record.reference),
            record.text,
            record.nfe,
            record.tokens_non_eos,
            ratio(record.tokens_non_eos, record.nfe),
        ]
        for record in records
    ]
    return wandb.Table(columns=list(TABLE_COLUMNS), data=rows)
