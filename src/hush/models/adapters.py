"""Adapters: low-rank updates (LoRA) beside frozen layers, so that a pretrained model is fine-tuned by few parameters.

A layer that computes W x computes W x + s B (A x) instead, with A of shape rank x inputs drawn at random, B of shape
outputs x rank zero before training, and s = alpha / rank. Adapters and head are all that is trained, clipped, noised
and sent; everything else is frozen. `ffa-lora` trains B alone: half as many parameters to noise, and the average of
several clients' updates B A is then an update of the same form, which it is not if A differs as well.

Edge cases:
    - An adapted module computes at first what it computed before.
    - A layer used in several places stays one layer, with one adapter.
    - `nn.MultiheadAttention` reads the weights of its layers, so it is adapted as a whole: its projections of queries,
      keys and values, and that of its output.
    - Models of Hugging Face are adapted by peft, which knows layers of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hush.models.validation import copied, seeded
from hush.seeds import rng
from hush.types import HushError

KEY = "model.adapters"
KINDS = ("lora", "ffa-lora")
_HINT = "accepted: names of layers, or the ends of their paths"


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """How a module is adapted.

    Attributes:
        kind: "lora", or "ffa-lora", which freezes A.
        rank: Of each update.
        alpha: The update's factor is alpha / rank.
        targets: The layers that are adapted, by name or by the end of their path; by default all linear layers and
            attention outside the head (of Hugging Face models: all linear layers outside the head).
        head: The layers that are trained as a whole, named in the same way; by default the last linear layer (of
            Hugging Face models: what is not in the pretrained base model).
        seed: Of A.
    """

    kind: str = "lora"
    rank: int = 8
    alpha: float = 16.0
    targets: Sequence[str] | None = None
    head: Sequence[str] | None = None
    seed: int = 0


class LowRank(nn.Module):
    """s B (A x) along the last axis."""

    def __init__(self, inputs: int, outputs: int, rank: int, scale: float) -> None:
        super().__init__()
        # Made without PyTorch's generator, whose state belongs to the user.
        self.lora_A = nn.utils.skip_init(nn.Linear, inputs, rank, bias=False)
        self.lora_B = nn.utils.skip_init(nn.Linear, rank, outputs, bias=False)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        """Return the update of a layer's output."""
        out: Tensor = self.lora_B(self.lora_A(x)) * self.scale
        return out

    @property
    def weight(self) -> Tensor:
        """The update of the layer's weight."""
        update: Tensor = self.scale * (self.lora_B.weight @ self.lora_A.weight)
        return update


class AdaptedLinear(nn.Module):
    """A frozen linear layer and its low-rank update."""

    def __init__(self, base: nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        self.base = base
        self.adapter = LowRank(base.in_features, base.out_features, rank, scale)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        out: Tensor = self.base(x) + self.adapter(x)
        return out

    @property
    def weight(self) -> Tensor:
        """The weight with its update, for code that does not call the layer."""
        return self.base.weight + self.adapter.weight

    @property
    def bias(self) -> Tensor | None:
        """That of the frozen layer."""
        return self.base.bias

    @property
    def in_features(self) -> int:
        """How many inputs the layer has."""
        return self.base.in_features

    @property
    def out_features(self) -> int:
        """How many outputs the layer has."""
        return self.base.out_features


class AdaptedAttention(nn.Module):
    """Frozen multi-head attention and the low-rank updates of its four projections."""

    # PyTorch's transformer layers look at this before they pass the weights alone to a fused kernel.
    _qkv_same_embed_dim = False

    def __init__(self, base: nn.MultiheadAttention, rank: int, scale: float) -> None:
        super().__init__()
        self.base = base
        width = base.embed_dim
        self.query = LowRank(width, width, rank, scale)
        self.key = LowRank(base.kdim or width, width, rank, scale)
        self.value = LowRank(base.vdim or width, width, rank, scale)
        self.output = LowRank(width, width, rank, scale)

    @property
    def batch_first(self) -> bool:
        """Whether the batch is the first axis."""
        return bool(self.base.batch_first)

    @property
    def in_proj_bias(self) -> Tensor | None:
        """That of the frozen layer."""
        return self.base.in_proj_bias

    @property
    def num_heads(self) -> int:
        """How many heads there are."""
        return int(self.base.num_heads)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return output and attention weights as `nn.MultiheadAttention` does; `is_causal` is a hint on `attn_mask`."""
        base, single = self.base, query.ndim == 2
        if single:
            query, key, value = query[None], key[None], value[None]
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        elif not base.batch_first:
            query, key, value = (t.transpose(0, 1) for t in (query, key, value))
        q, k, v = (t.unflatten(-1, (base.num_heads, -1)).transpose(1, 2) for t in self._projected(query, key, value))
        mask = _mask(key_padding_mask, attn_mask, base.num_heads, query)
        dropout = base.dropout if self.training else 0.0
        weights: Tensor | None = None
        if need_weights:
            scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
            weights = torch.softmax(scores if mask is None else scores + mask, -1)
            mixed = functional.dropout(weights, dropout, dropout > 0) @ v
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights[0] if single else weights
        else:
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        mixed = mixed.transpose(1, 2).flatten(2)
        out = functional.linear(mixed, base.out_proj.weight, base.out_proj.bias) + self.output(mixed)
        if single:
            return out[0], weights
        return (out if base.batch_first else out.transpose(0, 1)), weights

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> Iterator[Tensor]:
        base: Any = self.base
        if base.in_proj_weight is not None:
            frozen: Iterable[Any] = base.in_proj_weight.chunk(3)
        else:
            frozen = (base.q_proj_weight, base.k_proj_weight, base.v_proj_weight)
        shifts = (None, None, None) if base.in_proj_bias is None else base.in_proj_bias.chunk(3)
        for x, weight, shift, adapter in zip(
            (query, key, value), frozen, shifts, (self.query, self.key, self.value), strict=True
        ):
            yield functional.linear(x, weight, shift) + adapter(x)


def lora(
    module: nn.Module,
    rank: int = 8,
    alpha: float = 16.0,
    targets: Sequence[str] | None = None,
    head: Sequence[str] | None = None,
    *,
    kind: str = "lora",
    seed: int = 0,
) -> nn.Module:
    """Return a copy of a module in which low-rank adapters and the head are all that is trained.

    Args:
        module: A pretrained module; it is not changed.
        rank: Of each update.
        alpha: An update's factor is alpha / rank.
        targets: The layers that are adapted, by name or by the end of their path; by default all linear layers and
            attention outside the head.
        head: The layers that are trained as a whole; by default the last linear layer (of Hugging Face models: what
            is not in the pretrained base model).
        kind: "lora", or "ffa-lora", which trains B alone of each update B A.
        seed: Of A.

    Raises:
        HushError: No layer has such a name, or the module cannot be adapted.
    """
    wanted = Adapters(kind=kind, rank=rank, alpha=alpha, targets=targets, head=head, seed=seed)
    return adapted(copied(module, type(module).__name__), wanted)


def adapted(module: nn.Module, adapters: Adapters) -> nn.Module:
    """Return the module with adapters beside its layers; it is changed, and only adapters and head ask for gradients.

    Raises:
        HushError: As `lora`.
    """
    _check(adapters)
    whole, head = _kind_of(module), head_of(module, adapters.head)
    targets = _outside(whole.targets(), head)
    if adapters.targets is not None:
        targets = _outside(_named(module, adapters.targets, "model.targets"), head)
        if wrong := [path for path in targets if not whole.adaptable(module.get_submodule(path))]:
            kind = type(module.get_submodule(wrong[0])).__name__
            raise HushError(
                f"model.targets: {wrong[0]} is a {kind}; accepted: linear layers and nn.MultiheadAttention",
                "model.targets",
            )
    if not targets:
        raise HushError(
            f"{KEY}: {type(module).__name__} has no linear layer or attention outside its head "
            f"({', '.join(head) or 'none'}) to adapt; accepted: a model with such layers, or none",
            KEY,
        )
    module.requires_grad_(False)
    trained = [module.get_submodule(path) for path in head]
    whole.adapt(targets, adapters)
    for part in trained:
        part.requires_grad_(True)
    _draw(module, adapters)
    return module


def head_of(module: nn.Module, names: Sequence[str] | None = None) -> list[str]:
    """Return the paths of the layers that are trained as a whole: those with these names, or the default."""
    return _kind_of(module).head() if names is None else _named(module, names, "model.head")


def is_hugging_face(module: nn.Module) -> bool:
    """Return whether a module is one of the transformers library, which is not imported for this."""
    return any(
        base.__module__.startswith("transformers.") and base.__name__ == "PreTrainedModel"
        for base in type(module).__mro__
    )


def _kind_of(module: nn.Module) -> _Plain | _HuggingFace:
    return _HuggingFace(module) if is_hugging_face(module) else _Plain(module)


class _Plain:
    """A module of PyTorch's own layers and the user's."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def head(self) -> list[str]:
        linear = [path for path, part in self.module.named_modules() if type(part) is nn.Linear]
        if not linear:
            raise HushError(
                f"model.head: {type(self.module).__name__} has no linear layer that could be its head; accepted: the "
                "names of layers to train as a whole",
                "model.head",
            )
        return linear[-1:]

    def targets(self) -> list[str]:
        found = {path: part for path, part in self.module.named_modules() if self.adaptable(part)}
        attention = [path for path, part in found.items() if isinstance(part, nn.MultiheadAttention)]
        return [path for path in found if not any(path.startswith(f"{whole}.") for whole in attention)]

    def adaptable(self, part: nn.Module) -> bool:
        return type(part) in (nn.Linear, nn.MultiheadAttention)

    def adapt(self, targets: Sequence[str], adapters: Adapters) -> None:
        made: dict[int, nn.Module] = {}
        for path in targets:
            part = self.module.get_submodule(path)
            made[id(part)] = _adapter_of(part, path, adapters)
        for holder in list(self.module.modules()):
            if isinstance(holder, nn.TransformerEncoder):
                # Nested tensors are for the fused kernel alone, which adapted attention does not take.
                holder.use_nested_tensor = False
            for name, child in list(holder._modules.items()):
                if child is not None and id(child) in made and not isinstance(holder, AdaptedLinear | AdaptedAttention):
                    holder._modules[name] = made[id(child)]


class _HuggingFace:
    """A model of Hugging Face, which peft adapts in place."""

    def __init__(self, module: nn.Module) -> None:
        self.module: Any = module

    def head(self) -> list[str]:
        base = self.module.base_model_prefix
        return [
            name for name, part in self.module.named_children() if name != base and any(True for _ in part.parameters())
        ]

    def targets(self) -> list[str]:
        return [path for path, part in self.module.named_modules() if self.adaptable(part)]

    def adaptable(self, part: nn.Module) -> bool:
        # Conv1D is what GPT-2 calls its linear layers.
        return isinstance(part, nn.Linear) or type(part).__name__ == "Conv1D"

    def adapt(self, targets: Sequence[str], adapters: Adapters) -> None:
        try:
            from peft import LoraConfig, inject_adapter_in_model
        except ImportError:
            raise HushError(
                f"{KEY}: adapters of Hugging Face models need peft; accepted: pip install hush[hf]", KEY
            ) from None
        transposed = any(type(self.module.get_submodule(path)).__name__ == "Conv1D" for path in targets)
        alpha: Any = adapters.alpha  # declared as an integer, and divided by the rank
        settings = LoraConfig(
            r=adapters.rank, lora_alpha=alpha, target_modules=list(targets), lora_dropout=0.0, bias="none",
            fan_in_fan_out=transposed,
        )  # fmt: skip
        with seeded(adapters.seed):
            inject_adapter_in_model(settings, self.module)


def _adapter_of(part: nn.Module, path: str, adapters: Adapters) -> nn.Module:
    scale = adapters.alpha / adapters.rank
    if isinstance(part, nn.MultiheadAttention):
        if part.bias_k is not None or part.add_zero_attn:
            raise HushError(
                f"model.targets: {path} uses add_bias_kv or add_zero_attn, which adapters do not; accepted: other "
                "layers",
                "model.targets",
            )
        return AdaptedAttention(part, adapters.rank, scale)
    assert isinstance(part, nn.Linear)
    return AdaptedLinear(part, adapters.rank, scale)


@torch.no_grad()
def _draw(module: nn.Module, adapters: Adapters) -> None:
    """Draw every A uniformly in +-1/sqrt(inputs), as PyTorch draws a linear layer; B is zero."""
    for path, value in module.named_parameters():
        if ".lora_A." in path:
            bound = 1.0 / math.sqrt(value.shape[1])
            drawn = rng(adapters.seed, "adapters", path).uniform(-bound, bound, tuple(value.shape))
            value.copy_(torch.from_numpy(drawn))
            value.requires_grad_(adapters.kind == "lora")
        elif ".lora_B." in path:
            value.zero_()
            value.requires_grad_(True)


def _check(adapters: Adapters) -> None:
    if adapters.kind not in KINDS:
        raise HushError(f"{KEY}: found {adapters.kind!r}; accepted: {', '.join(KINDS)}", KEY)
    if isinstance(adapters.rank, bool) or not isinstance(adapters.rank, int) or adapters.rank < 1:
        raise HushError(f"model.rank: found {adapters.rank!r}; accepted: an integer of at least 1", "model.rank")
    if not (isinstance(adapters.alpha, int | float) and math.isfinite(adapters.alpha) and adapters.alpha > 0):
        raise HushError(f"model.alpha: found {adapters.alpha!r}; accepted: a number above 0", "model.alpha")


def _named(module: nn.Module, names: Sequence[str], key: str) -> list[str]:
    """Return the paths of the modules with these names, in the order of the module."""
    if isinstance(names, str):
        raise HushError(f"{key}: found {names!r}; accepted: a list of names of layers", key)
    paths = [path for path, _ in module.named_modules() if path]
    matched = {name: [path for path in paths if path == name or path.endswith(f".{name}")] for name in names}
    if missing := [name for name, found in matched.items() if not found]:
        known = ", ".join(dict.fromkeys(path.rpartition(".")[2] for path, part in module.named_modules() if path))
        raise HushError(f"{key}: no layer is named {missing[0]!r}; {_HINT}, of {known:.200}", key)
    chosen = {path for found in matched.values() for path in found}
    return [path for path in paths if path in chosen]


def _outside(paths: Sequence[str], head: Sequence[str]) -> list[str]:
    return [path for path in paths if not any(path == each or path.startswith(f"{each}.") for each in head)]


def _mask(padding: Tensor | None, attention: Tensor | None, heads: int, like: Tensor) -> Tensor | None:
    """Return what is added to the scores, examples x heads x queries x keys, or none."""
    found: Tensor | None = None
    if attention is not None:
        found = _added(attention, like)
        # Of three axes, the first has a mask for each example and head.
        found = found.unflatten(0, (-1, heads)) if found.ndim == 3 else found[None, None]
    if padding is not None:
        own = _added(padding, like)[:, None, None, :]
        found = own if found is None else found + own
    return found


def _added(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, -math.inf)
