"""Checkpoint folders in the Hub's layout: config.json and safetensors, whole or in shards."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dllmx.errors import ConfigError, RunError
from dllmx.models.families import FAMILIES, family_of, shape_of
from dllmx.models.layout import empty_weights, named_views
from dllmx.models.model import Model, ModelShape, Weights

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
LOADABLE = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
POINTER = b"version https://git-lfs"


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. RunError where it is unreadable or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise RunError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise RunError(f"{path} holds a {type(content).__name__}, not a JSON object")
    return content


def read_shape(folder: Path) -> ModelShape:
    """The shape of the model in a checkpoint folder, from its config.json and tokenizer files.

    The id that ends a chat turn is no config key on the Hub: it is taken from the tokenizer's
    added tokens. ConfigError where there is no config.json or the model is not supported.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise ConfigError(f"{folder} is no checkpoint folder: it has no {CONFIG}")
    values = read_json(path)
    shape = shape_of(values, str(path))
    if shape.eot_id is not None:
        return shape
    end_of_turn = family_of(values, str(path)).end_of_turn
    return replace(shape, eot_id=added_tokens(folder).get(end_of_turn))


def added_tokens(folder: Path) -> dict[str, int]:
    """Text and id of the tokens that the folder's tokenizer adds to its vocabulary."""
    settings = folder / "tokenizer_config.json"
    if settings.is_file():
        decoder = read_json(settings).get("added_tokens_decoder") or {}
        if decoder:
            return {token["content"]: int(token_id) for token_id, token in decoder.items()}
    whole = folder / "tokenizer.json"
    listed = read_json(whole).get("added_tokens") or [] if whole.is_file() else []
    return {token["content"]: token["id"] for token in listed}


def load_weights(
    folder: Path, shape: ModelShape, dtype: torch.dtype, device: torch.device | str
) -> Weights:
    """The weights of ``folder`` in ``dtype`` on ``device``, read one tensor at a time.

    Peak memory is that of the model and one tensor. ``shape.layers`` may be smaller than the
    checkpoint's depth: deeper layers are then skipped. Every tensor of the checkpoint must be
    known, none may be missing, each must have its size and finite values. ConfigError where the
    folder holds no safetensors or too few layers, RunError where its content is damaged.
    """
    stored = read_shape(folder)
    if shape.layers > stored.layers:
        raise ConfigError(
            f"model.layers={shape.layers}: {folder} has {stored.layers} layers; ask for fewer"
        )
    files = _tensor_files(folder)
    full = named_views(empty_weights(stored, dtype, "meta"), stored)
    _check_names(folder, expected=set(full), found=set(files))
    weights = empty_weights(replace(stored, layers=shape.layers), dtype, device)
    wanted = named_views(weights, stored)
    for file in sorted({files[name] for name in wanted}):
        names = [name for name in wanted if files[name] == file]
        _copy_tensors(folder / file, {name: wanted[name] for name in names})
    return weights


def save_checkpoint(
    folder: Path,
    model: Model,
    dtype: torch.dtype,
    max_shard_bytes: int = 5_000_000_000,
) -> None:
    """Write ``model`` in the Hub's layout: config.json, and one file or shards with an index.

    Each file is complete before it takes its name; weight files of an earlier save are removed.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    views = named_views(model.weights, model.shape)
    shards = _split(views, dtype, max_shard_bytes)
    files = _shard_names(len(shards))
    for file, names in zip(files, shards, strict=True):
        tensors = {name: _stored(views[name], dtype) for name in names}
        with _replacing(folder / file) as unfinished:
            save_file(tensors, unfinished, metadata={"format": "pt"})
    _remove_stale(folder, files)
    if len(files) > 1:
        total = sum(_bytes(views[name], dtype) for name in views)
        where = {name: file for file, names in zip(files, shards, strict=True) for name in names}
        _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": where})
    config = FAMILIES[model.shape.family].write(model.shape)
    _write_json(folder / CONFIG, {**config, "torch_dtype": str(dtype).removeprefix("torch.")})


@dataclass(frozen=True, slots=True)
class _Source:
    """One safetensors file, opened; ``path`` is named in errors."""

    path: Path
    opened: Any

    def tensor(self, name: str, view: Tensor) -> Tensor:
        tensor: Tensor = self.opened.get_tensor(name)
        if tensor.shape != view.shape:
            raise RunError(
                f"{self.path}: {name} has the size {list(tensor.shape)}; "
                f"config.json asks for {list(view.shape)}"
            )
        if tensor.dtype not in LOADABLE:
            raise RunError(
                f"{self.path}: {name} is {tensor.dtype}; only plain floats can be loaded"
            )
        return tensor


def _copy_tensors(path: Path, targets: Mapping[str, Tensor]) -> None:
    """Fill the ``targets`` from one file, in the order in which the file holds them."""
    with _open(path) as source:
        held = list(source.opened.keys())
        _check_names(path, expected=set(targets), found=set(held) & set(targets))
        for name in held:
            if name not in targets:
                continue
            view = targets[name]
            with torch.no_grad():
                view.copy_(source.tensor(name, view))
            _check_finite(path, name, view)


def _check_finite(path: Path, name: str, view: Tensor) -> None:
    # The extremes show NaN and infinity without a temporary as large as the tensor.
    if not all(torch.isfinite(extreme) for extreme in torch.aminmax(view)):
        raise RunError(
            f"{path}: {name} holds NaN or infinite values as {view.dtype}. "
            "Fetch the file again, or try hardware.dtype=float32"
        )


@contextmanager
def _open(path: Path) -> Iterator[_Source]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise RunError(f"{path} is missing; the checkpoint is incomplete, fetch it again")
    with path.open("rb") as file:
        if file.read(len(POINTER)) == POINTER:
            raise RunError(f"{path} is a Git LFS pointer, not the weights; run: git lfs pull")
    try:
        with safe_open(path, framework="pt", device="cpu") as opened:
            yield _Source(path, opened)
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path} is damaged or cut short ({error}); fetch it again") from error


def _tensor_files(folder: Path) -> dict[str, str]:
    """The file that holds each tensor, by name."""
    if (folder / INDEX).is_file():
        return _indexed_files(folder / INDEX)
    if (folder / SINGLE).is_file():
        with _open(folder / SINGLE) as source:
            return dict.fromkeys(source.opened.keys(), SINGLE)
    pickled = sorted(path.name for path in folder.glob("*.bin"))
    if pickled:
        raise ConfigError(
            f"{folder} has only pickled weights ({pickled[0]}), which can run code and are never "
            "read. Convert them: safetensors.torch.save_file(torch.load(F, weights_only=True), G)"
        )
    raise ConfigError(f"{folder} has neither {SINGLE} nor {INDEX}; it holds no weights")


def _indexed_files(index: Path) -> dict[str, str]:
    files = read_json(index).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise RunError(f"{index} has no weight_map; fetch it again")
    for name, file in files.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise RunError(
                f"{index}: {name} points to {file!r}; a file of the same folder is needed"
            )
    return files


def _check_names(place: Path, expected: set[str], found: set[str]) -> None:
    if missing := expected - found:
        raise RunError(f"{place}: the checkpoint lacks {_some(missing)}")
    if unknown := found - expected:
        raise RunError(
            f"{place}: the checkpoint has tensors that config.json does not account for: "
            f"{_some(unknown)}"
        )


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    rest = f" and {len(ordered) - 3} more" if len(ordered) > 3 else ""
    return ", ".join(ordered[:3]) + rest


def _split(views: Mapping[str, Tensor], dtype: torch.dtype, limit: int) -> list[list[str]]:
    """Tensor names in shards of at most ``limit`` bytes; a larger tensor has its own shard."""
    shards: list[list[str]] = [[]]
    used = 0
    for name, view in views.items():
        size = _bytes(view, dtype)
        if shards[-1] and used + size > limit:
            shards.append([])
            used = 0
        shards[-1].append(name)
        used += size
    return shards


def _bytes(view: Tensor, dtype: torch.dtype) -> int:
    return view.numel() * dtype.itemsize


def _stored(view: Tensor, dtype: torch.dtype) -> Tensor:
    # A clone: views of one fused matrix share memory, which safetensors refuses to write.
    return view.detach().to(device="cpu", dtype=dtype, copy=True).contiguous()


def _shard_names(count: int) -> list[str]:
    if count == 1:
        return [SINGLE]
    return [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def _remove_stale(folder: Path, written: Iterable[str]) -> None:
    keep = set(written)
    for path in [*folder.glob("model*.safetensors"), folder / INDEX]:
        if path.name not in keep:
            path.unlink(missing_ok=True)


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A path to write to, which takes the place of ``path`` once it is complete."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.touch()
    permissions = unfinished.stat().st_mode
    yield unfinished
    unfinished.chmod(permissions)  # safetensors writes files that only their owner may read
    unfinished.replace(path)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    with _replacing(path) as unfinished:
        unfinished.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
