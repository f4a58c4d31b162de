"""Select how clipped sums are computed: the first path of a table whose condition holds.

Edge cases:
    - A model with a layer that `hush.training.per_example.rules` does not know is trained by vmap, with one warning
      that names the layer, or is refused if `strict`.
    - Where PyTorch has hooks for all modules, every path but the closed form, which never runs a module, is refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakSet

import torch
from torch import Tensor, nn

from hush.models import Model
from hush.models.validation import check_global_hooks
from hush.privacy.source import DeviceRng
from hush.training import memory
from hush.training.clipped_sum import ClippedSum
from hush.training.closed_form import ClosedFormSum, LinearLayer, linear_layer_of
from hush.training.gpu.graph_replay import GraphReplaySum
from hush.training.gpu.linear.clipped_sum import LinearSum, can_train
from hush.training.gpu.noise_bank import device_rngs, noise_fits
from hush.training.gpu.pooled_cnn.clipped_sum import PooledCnnSum, pooled_cnn_sums
from hush.training.gpu.pooled_cnn.network import PooledCnn, pooled_cnn_of
from hush.training.grouping import similar_batches
from hush.training.job import Job
from hush.training.per_example.discrete_sums import IntegerSum
from hush.training.per_example.proxies import UnsupportedError
from hush.training.per_example.recorder import Recorder
from hush.training.per_example.sums import (
    PackedSum,
    PaddedSum,
    Probe,
    micro_batch_size,
    packed_sums,
    padded_sums,
    probe,
)
from hush.training.per_example.vmap import VmapSum, check_vmap, vmap_sums
from hush.training.precision import Precision, triton_kernels
from hush.types import HushError

_SUPPORTED = (
    "modules whose batches can be traced (docs/models.md); as a bare nn.Sequential, layers with weights of their own: "
    "Linear, convolutions, Embedding, GroupNorm, LayerNorm, InstanceNorm, RMSNorm"
)
_WARNED: WeakSet[nn.Module] = WeakSet()


@dataclass(frozen=True, kw_only=True)
class _Facts:
    """What the choice depends on. Each fact is computed when a row of the table first asks for it."""

    model: Model
    x: Tensor
    y: Tensor
    jobs: Sequence[Job]
    limit: int | None
    precision: Precision
    strict: bool

    @property
    def on_gpu(self) -> bool:
        return self.x.is_cuda

    @property
    def grouped(self) -> bool:
        """Whether examples are several rows of a person, whose gradients are averaged before they are clipped."""
        return any(job.persons is not None and job.persons.per_batch > 1 for job in self.jobs)

    @property
    def discrete(self) -> bool:
        return any(job.plan.discrete for job in self.jobs)

    @property
    def input_mean(self) -> bool:
        return any(job.input_mean is not None for job in self.jobs)

    @cached_property
    def pooled_cnn(self) -> PooledCnn | None:
        """The network, if its kernels can run here, which have softmax built in, and all noise can be prefetched."""
        x, convolutional = self.x, any(len(shape) == 4 for shape in self.model.layout.shapes)
        if self.grouped or not self.model.objective.loss.softmax or self.y.is_floating_point():
            return None
        if not convolutional or not x.is_contiguous() or x.dtype != torch.float32 or triton_kernels(x.device) is None:
            return None
        network = pooled_cnn_of(self.model, x)
        return network if network is not None and noise_fits(self.jobs) else None

    @cached_property
    def linear(self) -> LinearLayer | None:
        """The model's only layer, if it is linear and its products are not to be rounded: it forms no gradients."""
        return linear_layer_of(self.model, self.x) if self.precision != "bf16" else None

    @cached_property
    def rngs(self) -> Sequence[DeviceRng | None]:
        return device_rngs(self.jobs)

    @property
    def linear_kernels(self) -> bool:
        """Whether the kernels of a linear layer can run here, and train these jobs."""
        if not self.on_gpu or self.grouped or self.linear is None or triton_kernels(self.x.device) is None:
            return False
        return can_train(self.linear, self.x, self.y, self.jobs, self.rngs)

    @property
    def closed_form(self) -> bool:
        return not self.on_gpu and not self.discrete and not self.grouped and self.linear is not None

    @cached_property
    def replayable(self) -> bool:
        """Whether steps can be captured: the noise of every group can be prefetched or drawn on the device."""
        groups = similar_batches(self.jobs) if self.on_gpu else []
        # Keys of dropout are drawn on the host, step by step.
        drawn = self.on_gpu and not self.model.keyed
        return drawn and all(noise_fits([self.jobs[i] for i in group]) for group in groups)

    @cached_property
    def supported(self) -> bool:
        """Whether every layer has a rule for per-example gradients, which one pass over one example shows."""
        reason = self.probe.unsupported
        if reason is not None:
            _warn_slow_path(self.model, reason, self.strict)
        return reason is None

    @property
    def probe(self) -> Probe:
        return probe(self.model, self.x, self.y)

    @cached_property
    def physical_batch(self) -> int:
        if self.limit is not None:
            return self.limit
        numbers = self.probe.numbers if self.on_gpu and not self.grouped and not self.discrete else None
        return memory.physical_batch(self.model, self.x.device, len(self.jobs), numbers)

    def pooled_cnn_sum(self) -> ClippedSum:
        assert self.pooled_cnn is not None
        return PooledCnnSum(self.model, self.pooled_cnn, self.x, self.y, self.limit, self.precision)

    def linear_sum(self) -> ClippedSum:
        assert self.linear is not None
        return LinearSum(self.linear, self.x, self.y, self.jobs, self.rngs)

    def closed_form_sum(self) -> ClippedSum:
        assert self.linear is not None
        return ClosedFormSum(
            self.model, self.linear, self.x, self.y, memory.LINEAR_EXAMPLES if self.limit is None else self.limit
        )

    def graph_replay_sum(self) -> ClippedSum:
        linear = self.linear if self.input_mean else None
        return GraphReplaySum(self.model, self.x, self.y, self.jobs, self.physical_batch, self.precision, linear)

    def packed_sum(self) -> ClippedSum:
        return PackedSum(self.model, self.x, self.y, self.physical_batch, self.precision)

    def padded_sum(self) -> ClippedSum:
        return PaddedSum(self.model, self.x, self.y, self.physical_batch, self.precision)

    def integer_sum(self) -> ClippedSum:
        check_vmap(self.model, self.x, self.y)
        return IntegerSum(self.model, self.x, self.y, self.physical_batch, self.precision)

    def vmap_sum(self) -> ClippedSum:
        check_vmap(self.model, self.x, self.y)
        return VmapSum(self.model, self.x, self.y, self.physical_batch, self.precision)


# The first row whose condition holds is taken. The probe behind `supported` comes after what needs none.
_Row = tuple[Callable[[_Facts], ClippedSum], Callable[[_Facts], bool], str]
TABLE: tuple[_Row, ...] = (
    (_Facts.pooled_cnn_sum, lambda f: f.pooled_cnn is not None, "one launch serves batches of all sizes, unpadded"),
    (_Facts.linear_sum, lambda f: f.linear_kernels, "norms follow from inputs and errors; one launch for all clients"),
    (_Facts.integer_sum, lambda f: f.discrete, "discrete noise needs integers, exact in any order of addition"),
    (_Facts.vmap_sum, lambda f: f.grouped, "rows of a person are averaged before they are clipped"),
    (_Facts.closed_form_sum, lambda f: f.closed_form, "norms follow from those of the inputs"),
    (_Facts.graph_replay_sum, lambda f: f.replayable and f.input_mean and f.linear is not None, "means without copies"),
    (_Facts.packed_sum, lambda f: not f.on_gpu and f.supported, "a product per client is as fast as one for all"),
    (_Facts.graph_replay_sum, lambda f: f.replayable and f.supported, "launches would take longer than the kernels"),
    (_Facts.padded_sum, lambda f: f.supported, "too much noise to prefetch: steps are launched as they come"),
    (_Facts.vmap_sum, lambda f: True, "the only way for layers without a rule"),
)


def select(
    model: Model,
    x: Tensor,
    y: Tensor,
    jobs: Sequence[Job],
    physical_batch: int | None = None,
    precision: Precision = "float32",
    strict: bool = False,
) -> ClippedSum:
    """Return how the clipped sums of these jobs are computed; arguments as for `hush.training.train.train`.

    Fails if a layer has no rule and `strict`, if vmap's gradients are wrong for the model, or if hooks could mix rows.
    """
    facts = _Facts(model=model, x=x, y=y, jobs=jobs, limit=physical_batch, precision=precision, strict=strict)
    if not facts.closed_form:
        # The closed form alone never runs the module.
        check_global_hooks(model.name)
    return next(make(facts) for make, applies, _ in TABLE if applies(facts))


def clipped_sums(
    model: Model,
    vectors: Tensor,
    x: Tensor,
    y: Tensor,
    mask: Tensor,
    clips: Tensor,
    physical_batch: int = 4096,
    *,
    precision: Precision = "float32",
    strict: bool = False,
) -> Tensor:
    """Return the clipped gradient sum of each client over one batch, by pooled CNN kernels, recorded layers, or vmap.

    Args:
        model: Gives the logits.
        vectors: Parameters, clients x p.
        x: Inputs, clients x examples x shape.
        y: Targets, clients x examples, and outputs where they have several.
        mask: True where there is an example, clients x examples.
        clips: Norm bound of each client.
        physical_batch: Examples whose gradients are in memory at a time.
        precision: How layers multiply: in float32, or with operands rounded to tf32 (on GPUs) or bf16.
        strict: Refuse a model that needs vmap.

    Returns:
        clients x p, in float64.
    """
    kernels = model.objective.loss.softmax and vectors.dtype == torch.float32 and triton_kernels(x.device) is not None
    network = pooled_cnn_of(model, x[0]) if kernels else None
    if network is not None:
        return pooled_cnn_sums(network, vectors, x, y, mask, clips, physical_batch, precision)
    limit = micro_batch_size(model, vectors, physical_batch)
    try:
        recorder = Recorder(model)
        if vectors.is_cuda:
            xs, ys, masks = (t.transpose(0, 1).flatten(0, 1) for t in (x, y, mask))
            return padded_sums(recorder, vectors, xs, ys, masks, clips, limit, precision)
        return packed_sums(recorder, vectors, x[mask], y[mask], mask.sum(1).tolist(), clips, limit, precision)
    except UnsupportedError as reason:
        _warn_slow_path(model, reason, strict)
        return vmap_sums(model, vectors, x, y, mask, clips, physical_batch, precision=precision)


def _warn_slow_path(model: Model, reason: UnsupportedError, strict: bool) -> None:
    """Warn once for each model why vmap is needed and what it costs, or raise if `strict`."""
    text = f"model {model.name}: {reason}: no fast per-example gradient rule"
    if strict:
        raise HushError(f"{text}; accepted: {_SUPPORTED}") from None
    if model.module in _WARNED:
        return
    _WARNED.add(model.module)
    size = model.layout.size
    warnings.warn(
        f"{text}, so per-example gradients take the slow path: all {size:,} numbers of each example's gradient are "
        f"formed ({4e-6 * size:.3g} MB) by vmap, which takes about twice as long or more",
        stacklevel=3,
    )
