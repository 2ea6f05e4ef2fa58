"""What a decode holds at its peak, beside what model, store and policy account for.

On the CPU every storage that an operation makes is followed until it is freed; what an operation
allocates and frees within itself is not seen. On a CUDA device the allocator counts.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dllmx.config.schema import RunConfig
from dllmx.decode.batch import Request, build_parts
from dllmx.decode.decoder import Decoder
from dllmx.decode.forwarding import LOGIT_ROWS
from dllmx.decode.session import Session
from dllmx.engine.interface import AttentionRequest, Sizes
from dllmx.engine.store import stored_size
from dllmx.models.model import Model


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Bytes. ``model``: weights; ``store``: K/V and further tensors kept for every row; ``held``:
    what the parts declare, and the read-out that they ask for; ``logits``: of the rows read, at
    most LOGIT_ROWS at a time; ``peak``: most that was live at one time, weights included.
    """

    model: int
    store: int
    held: int
    logits: int
    peak: int

    @property
    def accounted(self) -> int:
        """What the peak should be, but for the activations of one layer and small tensors."""
        return self.model + self.store + self.held + self.logits

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {"accounted": self.accounted}


def measure_memory(model: Model, config: RunConfig, requests: Sequence[Request]) -> MemoryReport:
    """Decode ``requests`` as one batch and compare the peak with what is accounted for."""
    rows_read = [0]

    def note_rows(session: Session) -> None:
        read = sum(state.records[-1].predicted for state in session.sequences if state.records)
        rows_read[0] = max(rows_read[0], read)

    decoder = Decoder(model, config)
    weights = _weight_storages(model)
    model_bytes = sum(storage.nbytes() for storage in weights)
    if model.device.type == "cuda":
        before = torch.cuda.memory_allocated(model.device)
        torch.cuda.reset_peak_memory_stats(model.device)
        decoder.decode(requests, note_rows)
        peak = torch.cuda.max_memory_allocated(model.device) - before + model_bytes
    else:
        live = LiveStorage(weights)
        with live:
            decoder.decode(requests, note_rows)
        peak = live.peak + model_bytes
    length = max(len(request.prompt_ids) for request in requests) + config.sampler.gen_length
    return MemoryReport(
        model=model_bytes,
        store=_store_bytes(model, config, length, len(requests)),
        held=_held_bytes(model, config, length, len(requests)),
        logits=min(rows_read[0], LOGIT_ROWS) * model.shape.vocab * model.dtype.itemsize,
        peak=peak,
    )


class LiveStorage(TorchDispatchMode):
    """Counts the bytes of the storages that operations make: ``live`` now, ``peak`` at most.

    ``known`` storages, and what was made before, are not counted.
    """

    def __init__(self, known: Sequence[torch.UntypedStorage]) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known = {storage._cdata for storage in known}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation, then count what is new among its results."""
        existing = {_key(tensor) for tensor in _tensors((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            key = _key(tensor)
            if key not in existing and key not in self._known:
                self._count(key, tensor.untyped_storage())
        return result

    def _count(self, key: int, storage: torch.UntypedStorage) -> None:
        size = storage.nbytes()
        self._known.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._freed, key, size)

    def _freed(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _key(tensor: Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key


def _weight_storages(model: Model) -> list[torch.UntypedStorage]:
    """The storages of all weights, each once."""
    storages = [tensor.untyped_storage() for tensor in model.weights.tensors()]
    return list({storage._cdata: storage for storage in storages}.values())


def _store_bytes(model: Model, config: RunConfig, length: int, count: int) -> int:
    slots = count * (2 if config.sampler.guidance > 0 else 1)
    values = sum(
        stored_size(name, model.shape, slots, length).numel()
        for name in build_parts(config).cache.needs.store
    )
    return values * model.dtype.itemsize


def _held_bytes(model: Model, config: RunConfig, length: int, count: int) -> int:
    """What the parts of ``count`` sequences declare, with one read-out each."""
    shape, sampler, parts = model.shape, config.sampler, build_parts(config)
    sizes = Sizes(
        layers=shape.layers,
        width=shape.width,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        value_bytes=model.dtype.itemsize,
        length=length,
        block_length=getattr(sampler, "block_length", sampler.gen_length),
    )
    needs = (parts.cache.needs, parts.commit.needs)
    request = parts.cache.needs.attention
    read_out = 0 if request is None else _read_out_bytes(request, sizes)
    return count * (read_out + sum(need.held(sizes) for need in needs))


def _read_out_bytes(request: AttentionRequest, sizes: Sizes) -> int:
    """One read-out of the largest block, at every layer that was asked for."""
    rows, length = sizes.block_length, sizes.length
    layers = sizes.layers if request.layers is None else len(request.layers)
    if request.kind == "scores":
        queries = sizes.heads * rows * (sizes.head_dim * sizes.value_bytes + 4)
        keys = sizes.kv_heads * length * sizes.head_dim * sizes.value_bytes
        return layers * (queries + keys)
    per_layer = {
        "head_rows": sizes.heads * rows * length,
        "rows": rows * length,
        "mean_map": length * length,
        "column_sums": length,
    }
    return layers * 4 * per_layer[request.kind]
