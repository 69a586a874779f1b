"""One adapter over transformers' decoders: no model code of our own, and no list of models.

The model's own forward does all the work. Ours are the cache object (the canvas), the attention
function, and a hook before each layer through which a pass can lose rows or stop early.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from ragblend.errors import UnsupportedModelError
from ragblend.kernels.implementation import Implementation, resolve
from ragblend.kernels.layout import LayerKV
from ragblend.models import attention, refusal
from ragblend.models.canvas import Canvas, LayerShape
from ragblend.models.rope import PROBE_POSITIONS, LayerRotation, RotaryGeometry, explain_keys
from ragblend.models.rows import RowRun


class _StopForward(Exception):
    """Ends a forward before a layer; raised by the hook, caught by ``forward_rows``."""


class DecoderAdapter:
    """A transformers causal language model, seen as layers with movable KV.

    Raises UnsupportedModelError, with the reason, for a model that cannot serve; ConfigError and
    KernelUnavailableError for ``kernels`` that do not exist or cannot run on the model's device.
    Attributes: shapes (one LayerShape a layer), rotary (RotaryGeometry), context_length (tokens),
    kernels (the form that runs: triton, torch or reference).
    """

    def __init__(self, model: PreTrainedModel, kernels: Implementation = "auto") -> None:
        refusal.check_config(model.config)
        self.model = model.eval()  # type: ignore[no-untyped-call]
        self.family = str(model.config.model_type)
        self.device = torch.device(str(model.device))
        self.kernels = resolve(kernels, self.device)
        self.context_length = refusal.context_length(model.config)
        self._cache_argument = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        attention.register()
        model.set_attn_implementation(attention.ATTENTION_NAME)
        self._layers = _decoder_layers(model)
        for index, layer in enumerate(self._layers):
            _BeforeLayer.register(layer, index)
        self.shapes, self.rotary = self._probe()

    @property
    def layer_count(self) -> int:
        return len(self.shapes)

    @property
    def dtype(self) -> torch.dtype:
        """What the model computes in, and its KV."""
        dtype: torch.dtype = self.model.get_input_embeddings().weight.dtype
        return dtype

    def canvas(self, capacity: int, batch: int = 1) -> Canvas:
        """An empty canvas with room for ``capacity`` positions."""
        return Canvas(self.shapes, capacity, dtype=self.dtype, device=self.device, batch=batch, kernels=self.kernels)

    @torch.inference_mode()
    def forward_rows(self, canvas: Canvas, token_ids: Tensor, run: RowRun) -> Tensor | None:
        """Compute ``run.rows`` over the canvas and write their KV in place.

        token_ids: [T] int64, the whole prompt. Returns the last row's logits [vocabulary], or None
        where the run stops early.
        """
        canvas.run = run
        try:
            output = self._forward(token_ids[run.rows][None], run.rows[None], canvas, 1, row_run=run)
        except _StopForward:
            return None
        finally:
            canvas.run = None
        return output[0, -1]

    @torch.inference_mode()
    def append(
        self, canvas: Canvas, token_ids: Tensor, logits: int = 1, on_layer: Callable[[int], None] | None = None
    ) -> Tensor:
        """Compute ``token_ids`` [batch, n] right behind what the canvas holds.

        on_layer: called before each layer. Returns the logits of the last ``logits`` rows, [batch,
        logits, vocabulary].
        """
        start = canvas.get_seq_length()
        stop = start + token_ids.shape[1]
        positions = torch.arange(start, stop, device=self.device)
        watched = {} if on_layer is None else {"row_run": RowRun(positions, end=stop, on_layer=on_layer)}
        return self._forward(token_ids, positions[None].expand_as(token_ids), canvas, logits, **watched)

    def decode_arguments(self, canvas: Cache) -> dict[str, Any]:
        """A cache, such as a canvas, under the name that this transformers version gives it."""
        return {self._cache_argument: canvas}

    @torch.inference_mode()
    def canonical_rows(self, canvas: Canvas, start: int, stop: int) -> list[LayerKV]:
        """Canonical keys and values of positions start..stop-1, per layer [batch, kv_heads, n, head_dim]."""
        angles = self.rotary.angles(torch.arange(start, stop, device=self.device))
        layers = []
        for layer in range(self.layer_count):
            keys = canvas.keys(layer)[:, :, start:stop].clone()
            self.rotary.rotate_(layer, keys, angles, inverse=True)
            layers.append(LayerKV(keys, canvas.values(layer)[:, :, start:stop].clone()))
        return layers

    def _forward(self, token_ids: Tensor, positions: Tensor, canvas: Canvas, logits: int, **extra: Any) -> Tensor:
        output = self.model(
            input_ids=token_ids,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=logits,
            kernels=self.kernels,
            **self.decode_arguments(canvas),
            **extra,
        )
        result: Tensor = output.logits
        return result

    def _probe(self) -> tuple[tuple[LayerShape, ...], RotaryGeometry]:
        """Run one token at several positions and see what each layer puts into the cache."""
        token = torch.tensor([[min(7, self.model.config.get_text_config().vocab_size - 1)]], device=self.device)
        origin = self._probe_layers(token, 0)
        probes = {position: self._probe_layers(token, position) for position in PROBE_POSITIONS}
        shapes = []
        for keys, values in origin:
            if keys.shape != values.shape:
                raise UnsupportedModelError(
                    f"{self.family}: keys of {tuple(keys.shape)} and values of {tuple(values.shape)} differ in shape "
                    "(multi-head latent attention?), which the store cannot hold"
                )
            shapes.append(LayerShape(keys.shape[0], keys.shape[2]))
        rotary = getattr(self.model.base_model, "rotary_emb", None)
        rotations: list[LayerRotation] = []
        for layer, (keys, _) in enumerate(origin):
            moved = {position: probes[position][layer][0] for position in PROBE_POSITIONS}
            rotations.append(explain_keys(rotary, f"{self.family}: layer {layer}", keys, moved))
        return tuple(shapes), RotaryGeometry(rotary, rotations)

    @torch.inference_mode()
    def _probe_layers(self, token: Tensor, position: int) -> list[tuple[Tensor, Tensor]]:
        recorder = _Recorder(len(self._layers))
        attended: set[int] = set()
        run = RowRun(token.new_zeros(1), end=1, on_attend=lambda layer, *_: attended.add(layer))
        try:
            self.model(
                input_ids=token,
                position_ids=torch.full_like(token, position),
                use_cache=True,
                row_run=run,
                kernels=self.kernels,
                **self.decode_arguments(recorder),
            )
        except torch.OutOfMemoryError:
            raise
        except (TypeError, AttributeError, NotImplementedError, LookupError, ValueError, RuntimeError) as error:
            raise UnsupportedModelError(
                f"{self.family}: its layers do not run on a plain key/value cache ({error})"
            ) from error
        missing = [str(layer) for layer, seen in enumerate(recorder.seen) if seen is None]
        if missing:
            raise UnsupportedModelError(
                f"{self.family}: layers {', '.join(missing)} keep no keys and values "
                "(state-space, linear-attention or shared-KV layers), so their chunks could not be reused"
            )
        if len(attended) < len(self._layers):
            raise UnsupportedModelError(
                f"{self.family}: its attention does not go through transformers' attention interface, "
                "so scattered rows could not be masked by their positions"
            )
        return [seen for seen in recorder.seen if seen is not None]


class _Recorder(Canvas):
    """A cache that keeps the first rows each layer hands to it: [kv_heads, 1, head_dim] fp32."""

    def __init__(self, layer_count: int) -> None:
        super().__init__((), 0, dtype=torch.float32, device="cpu")
        self.layers = []
        self.seen: list[tuple[Tensor, Tensor] | None] = [None] * layer_count

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        self.seen[layer_idx] = (key_states[0].float(), value_states[0].float())
        return key_states, value_states


def _decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The decoder layers: the base model's list that is as long as the configuration says."""
    count = model.config.get_text_config().num_hidden_layers
    for _, module in model.base_model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise UnsupportedModelError(f"{model.config.model_type}: found no list of {count} decoder layers in the model")


class _BeforeLayer:
    """The hook of layer ``index``. All it knows about a request comes with the call, in ``row_run``.

    So one is enough for all adapters of a model, and a second one would place and rotate everything twice.
    """

    def __init__(self, index: int) -> None:
        self.index = index

    @classmethod
    def register(cls, layer: nn.Module, index: int) -> None:
        if not any(isinstance(hook, cls) for hook in layer._forward_pre_hooks.values()):
            layer.register_forward_pre_hook(cls(index), with_kwargs=True)

    def __call__(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        run: RowRun | None = kwargs.get("row_run")
        if run is None:
            return None
        if run.stop_before == self.index:
            raise _StopForward
        if run.on_layer is not None:
            run.on_layer(self.index)
        hidden, rest = (args[0], args[1:]) if args else (kwargs.pop("hidden_states"), ())
        if run.narrow_before == self.index and run.narrow is not None:
            kept = run.narrow()
            staying = torch.searchsorted(run.rows, kept)
            run.kept = staying if run.kept is None else run.kept[staying]
            run.rows = kept
            hidden = hidden[:, staying]
        if run.on_hidden is not None:
            hidden = run.on_hidden(self.index, hidden)
        if run.kept is not None:
            kwargs = {name: _select(name, value, run.kept) for name, value in kwargs.items()}
        return (hidden, *rest), kwargs


_PER_ROW_ARGUMENTS = ("position_embeddings", "position_ids")


def _select(name: str, value: Any, kept: Tensor) -> Any:
    """Keep the chosen rows of an argument that transformers passes per row: dimension 1."""
    if name not in _PER_ROW_ARGUMENTS or value is None:
        return value
    if isinstance(value, tuple):
        return tuple(part[:, kept] for part in value)
    return value[:, kept]
