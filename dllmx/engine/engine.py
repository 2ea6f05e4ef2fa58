"""One forward for every method: chosen rows against the stored keys and values of the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dllmx.engine.interface import AttentionRequest, LayerContext, Rows, Scores
from dllmx.engine.needs import head_probabilities
from dllmx.engine.rows import RowSet, SlotSet
from dllmx.engine.store import Store
from dllmx.kernels.choice import TORCH, Kernels
from dllmx.kernels.proxy_drift import ProxyDrift
from dllmx.models import layers
from dllmx.models.layers import LayerWeights, Rotation
from dllmx.models.model import Model

LayerHook = Callable[[LayerContext], Rows | Tensor | None]

OF_ALL_ROWS = ("mean_map", "column_sums")
"""Read-outs of every computed row; the others are of the block's rows."""
READ_FROM_ATTENTION = {
    "rows": ("head_mean",),
    "mean_map": ("head_mean",),
    "column_sums": ("column_sums",),
    "scores": ("log_sum_exp",),
    "head_rows": (),
}


class Projected(NamedTuple):
    """``q`` [b, H, R, h], ``k``, ``v`` [b, G, R, h] of some rows; ``k_unrotated`` likewise."""

    q: Tensor
    k: Tensor
    v: Tensor
    k_unrotated: Tensor


class Engine:
    """The device side of one batch: canvas [S, W], store, rotary table.

    ``canvas`` holds left-padded token ids; ``padding`` [S] says how many columns are padding.
    ``stored`` names the tensors kept for every row; without k and v only full forwards work.
    """

    def __init__(
        self,
        model: Model,
        canvas: Tensor,
        padding: list[int],
        stored: frozenset[str],
        kernels: Kernels = TORCH,
    ) -> None:
        slots, width = canvas.shape
        self.model = model
        self.kernels = kernels
        self.canvas = canvas
        self.padding = padding
        self.store = Store(model.shape, stored, slots, width, model.dtype, model.device)
        self._table = model.rotation_table(width)
        self._visible = self._visible_columns(width) if any(padding) else None
        for slot, count in enumerate(padding):
            self.store.clear_padding(slot, count)

    @torch.inference_mode()
    def forward(self, slots: SlotSet, rows: RowSet, visible: Tensor | None = None) -> Tensor:
        """Last-layer rows [b, R, D] of ``rows``; their fresh K/V overwrite the stored ones.

        ``visible`` [N]: canvas columns whose keys may be seen (one slot only); None means all.
        """
        x = self._embed(slots, rows)
        rotation = self._rotation(slots, rows)
        mask = self._mask(slots)
        for index, layer in enumerate(self.model.weights.layers):
            fresh = self._project(x, layer, rotation)
            keys, values = self._keep(index, slots, rows, x, fresh)
            if visible is not None:
                keys, values = keys[:, :, visible], values[:, :, visible]
            mixed = self.kernels.row_attention(fresh.q, keys, values, mask).mixed
            attended = F.linear(mixed, layer.attn_out)
            x = self._finish_layer(index, slots, rows, x, attended, layer)
        return x

    @torch.inference_mode()
    def forward_hooked(
        self,
        slot: int,
        rows: Tensor,
        hook: LayerHook | None,
        request: AttentionRequest | None,
        readout_rows: Tensor,
    ) -> tuple[Tensor, Tensor, int, dict[int, Tensor | Scores]]:
        """Forward of one slot in which ``hook`` may change the rows at every layer.

        ``rows`` [R] sorted columns. A row that joins at a layer brings its stored input ``x``, or
        the one that the hook gives (see ``Rows``); a row that leaves keeps its fresh K/V of that
        layer. Returns the last layer's rows [R', D], their columns [R'], rows x layers computed,
        and the attention read-outs by layer.
        """
        slots = SlotSet((slot,))
        current = RowSet(rows[None], None)
        x, rotation = self._embed(slots, current), self._rotation(slots, current)
        row_layers, readouts = 0, dict[int, Tensor | Scores]()
        for index, layer in enumerate(self.model.weights.layers):
            fresh = self._project(x, layer, rotation)
            wanted = None
            if hook is not None:
                wanted = hook(self._context(index, slot, current, x, fresh))
            keys, values = self._keep(index, slots, current, x, fresh)
            q = fresh.q
            if wanted is not None:
                x, q, current = self._change_rows(index, slots, current, x, q, wanted)
                rotation = self._rotation(slots, current)
                keys, values = (self.store.read(name, index, slots) for name in ("k", "v"))
            mask = self._mask(slots)
            if request is not None and self._is_asked(request, index):
                picked = torch.searchsorted(current.index[0], readout_rows)
                mixed, readouts[index] = self._attend_reading(
                    request.kind, slot, q, keys, values, mask, picked
                )
            else:
                mixed = self.kernels.row_attention(q, keys, values, mask).mixed
            attended = F.linear(mixed, layer.attn_out)
            x = self._finish_layer(index, slots, current, x, attended, layer)
            row_layers += current.count
        return x[0], current.index[0], row_layers, readouts

    def _attend_reading(
        self,
        kind: str,
        slot: int,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None,
        block: Tensor,
    ) -> tuple[Tensor, Tensor | Scores]:
        """Mixed values of ``q`` [1, H, R, h], and the read-out ``kind``; see AttentionRequest.

        ``block`` [R']: which of the R rows are the block's. Where there are others, its read-out is
        made apart: at a full forward that is less than reading every row.
        """
        read, padding = READ_FROM_ATTENTION[kind], self.padding[slot]
        apart = kind not in OF_ALL_ROWS and block.numel() < q.shape[2]
        found = self.kernels.row_attention(q, keys, values, mask, () if apart else read)
        mixed = found.mixed
        if apart:
            q = q[:, :, block]
            found = self.kernels.row_attention(q, keys, values, mask, read) if read else found
        if kind == "head_rows":
            return mixed, head_probabilities(q[0], keys[0, :, padding:])
        if found.log_sum_exp is not None:
            seen = keys[0, :, padding:].clone()  # the next forward overwrites the stored keys
            return mixed, Scores(q[0], seen, found.log_sum_exp[0])
        whole = found.head_mean if found.column_sums is None else found.column_sums
        assert whole is not None
        return mixed, whole[0, ..., padding:]

    def _context(
        self, index: int, slot: int, rows: RowSet, x: Tensor, fresh: Projected
    ) -> LayerContext:
        layer, shape = self.model.weights.layers[index], self.model.shape

        def queries(hidden: Tensor, positions: Tensor | None) -> Tensor:
            normed = layers.rms_norm(hidden[None], layer.attn_norm, shape.norm_eps)
            q = layers.project_qkv(normed, layer, shape.heads, shape.kv_heads)[0]
            if positions is None:
                return q[0]
            angles = Rotation(self._table.cos[positions][None], self._table.sin[positions][None])
            return layers.rotate(q, angles)[0]

        def refresh_proxies(
            hidden: Tensor, positions: Tensor | None, keys: Tensor, previous: Tensor | None
        ) -> ProxyDrift:
            of_queries = slice(shape.heads * shape.head_dim)
            return self.kernels.refresh_proxies(
                hidden,
                layer.attn_norm,
                shape.norm_eps,
                layer.qkv[of_queries],
                None if layer.qkv_bias is None else layer.qkv_bias[of_queries],
                None if positions is None else self._table.cos[positions],
                None if positions is None else self._table.sin[positions],
                keys,
                previous,
            )

        return LayerContext(
            layer=index,
            is_last=index == shape.layers - 1,
            rows=rows.index[0],
            x=x[0],
            q=fresh.q[0],
            k=fresh.k[0],
            v=fresh.v[0],
            k_unrotated=fresh.k_unrotated[0],
            store=self.store.layer_view(index, slot),
            queries=queries,
            refresh_proxies=refresh_proxies,
            kernels=self.kernels,
        )

    def _is_asked(self, request: AttentionRequest, index: int) -> bool:
        from_the_end = index - self.model.shape.layers
        return request.layers is None or not {index, from_the_end}.isdisjoint(request.layers)

    def _change_rows(
        self,
        index: int,
        slots: SlotSet,
        current: RowSet,
        x: Tensor,
        q: Tensor,
        wanted: Rows | Tensor,
    ) -> tuple[Tensor, Tensor, RowSet]:
        layer = self.model.weights.layers[index]
        change = wanted if isinstance(wanted, Rows) else Rows(wanted)
        new = RowSet(change.positions[None], None)
        joined = change.positions[~torch.isin(change.positions, current.index[0])]
        if joined.numel():
            extra = RowSet(joined[None], None)
            extra_x = self._inputs_of(index, slots, joined, change)
            fresh = self._project(extra_x, layer, self._rotation(slots, extra))
            self._keep(index, slots, extra, extra_x, fresh)
            columns = torch.cat([current.index[0], joined])
            x, q = torch.cat([x, extra_x], dim=1), torch.cat([q, fresh.q], dim=2)
        else:
            columns = current.index[0]
        order = columns.argsort()
        picked = order[torch.searchsorted(columns[order], change.positions)]
        return x[:, picked], q[:, :, picked], new

    def _inputs_of(self, index: int, slots: SlotSet, joined: Tensor, change: Rows) -> Tensor:
        """Layer inputs [1, n, D] of the columns ``joined``: the hook's, else the stored ones."""
        if change.held is None or change.inputs is None:
            return self.store.read("x", index, slots)[:, joined]
        given = change.inputs[torch.searchsorted(change.held, joined)]
        return given[None].to(self.model.dtype)

    def _embed(self, slots: SlotSet, rows: RowSet) -> Tensor:
        if rows.span is not None and slots.span is not None:
            window = slice(*slots.span), slice(*rows.span)
            return F.embedding(self.canvas[window], self.model.weights.embed)
        picked = self.canvas[list(slots.indices)]
        return F.embedding(picked.gather(1, rows.index), self.model.weights.embed)

    def _rotation(self, slots: SlotSet, rows: RowSet) -> Rotation:
        paddings = [self.padding[slot] for slot in slots.indices]
        if rows.span is not None and not any(paddings):
            window = slice(*rows.span)
            return Rotation(self._table.cos[None, window], self._table.sin[None, window])
        shift = torch.tensor(paddings, device=rows.index.device)
        positions = (rows.index - shift[:, None]).clamp(min=0)
        return Rotation(self._table.cos[positions], self._table.sin[positions])

    def _mask(self, slots: SlotSet) -> Tensor | None:
        if self._visible is None or not any(self.padding[slot] for slot in slots.indices):
            return None
        return self._visible[list(slots.indices)]

    def _visible_columns(self, width: int) -> Tensor:
        padding = torch.tensor(self.padding, device=self.model.device)
        return torch.arange(width, device=self.model.device)[None] >= padding[:, None]

    def _project(self, x: Tensor, layer: LayerWeights, rotation: Rotation) -> Projected:
        shape = self.model.shape
        normed = layers.rms_norm(x, layer.attn_norm, shape.norm_eps)
        q, k, v = layers.project_qkv(normed, layer, shape.heads, shape.kv_heads)
        return Projected(layers.rotate(q, rotation), layers.rotate(k, rotation), v, k)

    def _keep(
        self, index: int, slots: SlotSet, rows: RowSet, x: Tensor, fresh: Projected
    ) -> tuple[Tensor, Tensor]:
        stored = self.store.tensors
        if "x" in stored:
            self.store.write("x", index, slots, rows, x)
        if "q" in stored:
            self.store.write("q", index, slots, rows, fresh.q.transpose(1, 2).flatten(2))
        if "k_unrotated" in stored:
            self.store.write("k_unrotated", index, slots, rows, fresh.k_unrotated)
        if "k" not in stored:
            return fresh.k, fresh.v
        self.store.write("k", index, slots, rows, fresh.k)
        self.store.write("v", index, slots, rows, fresh.v)
        return self.store.read("k", index, slots), self.store.read("v", index, slots)

    def _finish_layer(
        self,
        index: int,
        slots: SlotSet,
        rows: RowSet,
        x: Tensor,
        attended: Tensor,
        layer: LayerWeights,
    ) -> Tensor:
        x = x + attended
        normed = layers.rms_norm(x, layer.mlp_norm, self.model.shape.norm_eps)
        fed = layers.feed_forward(normed, layer)
        if "attn_out" in self.store.tensors:
            self.store.write("attn_out", index, slots, rows, attended)
        if "mlp_out" in self.store.tensors:
            self.store.write("mlp_out", index, slots, rows, fed)
        return x + fed
