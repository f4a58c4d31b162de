"""step: how the server moves its models. All of it is post-processing: it costs no privacy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from hush.recipes.context import RoundView, ServerRng, State
from hush.recipes.interfaces import ServerStep


@dataclass(frozen=True)
class Add(ServerStep):
    """The model moves by the weighted mean of the updates: x += lr * move."""

    rule: ClassVar[str] = "add"
    lr: float = 1.0


@dataclass(frozen=True)
class Momentum(ServerStep):
    """The model moves by a running sum of the updates: v = beta * v + move; x += lr * v."""

    rule: ClassVar[str] = "momentum"
    lr: float = 1.0
    beta: float = 0.9

    def __post_init__(self) -> None:
        if not 0 <= self.beta < 1:
            raise ValueError(f"beta: expected a number from 0 to below 1, found {self.beta}")

    def start(self, models: Tensor) -> State:
        """At rest."""
        return {"velocity": torch.zeros_like(models)}

    def step(self, models: Tensor, move: Tensor, state: State, rng: ServerRng) -> tuple[Tensor, State]:
        """Gather speed, then move."""
        velocity = self.beta * state["velocity"] + move
        return models + self.lr * velocity, {**state, "velocity": velocity}


@dataclass(frozen=True)
class Adam(ServerStep):
    """FedAdam (Reddi et al. 2021): the weighted mean of the updates is taken for a gradient, and Adam moves by it."""

    rule: ClassVar[str] = "adam"
    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1 and self.tau > 0):
            raise ValueError(f"beta1, beta2, tau: expected 0 to below 1, and a positive tau, found {self}")

    def start(self, models: Tensor) -> State:
        """At rest; the second moment starts at tau squared."""
        return {"first": torch.zeros_like(models), "second": torch.full_like(models, self.tau**2)}

    def step(self, models: Tensor, move: Tensor, state: State, rng: ServerRng) -> tuple[Tensor, State]:
        """Move by the first moment over the root of the second."""
        first = self.beta1 * state["first"] + (1 - self.beta1) * move
        second = self.beta2 * state["second"] + (1 - self.beta2) * move.square()
        return models + self.lr * first / (second.sqrt() + self.tau), {**state, "first": first, "second": second}


class _Around(ServerStep):
    """A step that adds something to an inner one."""

    inner: ServerStep

    def start(self, models: Tensor) -> State:
        """As the inner step."""
        return self.inner.start(models)

    def observe(self, view: RoundView, weights: Tensor, state: State) -> State:
        """As the inner step."""
        return self.inner.observe(view, weights, state)


@dataclass(frozen=True)
class Noisy(_Around):
    """Noise of the server's own on top of another step, against a third party that sees only the models (PADPFL).

    It changes nothing of what the server itself sees, so no epsilon printed here counts it.
    """

    rule: ClassVar[str] = "noisy"
    deviation: float = 0.01
    inner: ServerStep = field(default_factory=Add)

    def __post_init__(self) -> None:
        if not self.deviation >= 0:
            raise ValueError(f"deviation: expected 0 or more, found {self.deviation}")

    def step(self, models: Tensor, move: Tensor, state: State, rng: ServerRng) -> tuple[Tensor, State]:
        """Let the inner step move, and add noise."""
        models, state = self.inner.step(models, move, state, rng)
        return models + self.deviation * rng.normal("server noise", *models.shape).to(models.dtype), state


@dataclass(frozen=True)
class TwoSided(_Around):
    """The server's part of two-sided noise (PADPFL, theorem 1): what the clients' noise lacks for T models.

    A client's noise is for R `revelations` of its update, and the models are seen in all T rounds. With the standard
    deviations sigma_i of the clients' noise and the weights p_i of the round, the server adds noise of the variance
    (T / R)^2 max (p_i sigma_i)^2 - sum (p_i sigma_i)^2, if that is above zero: equation 13, where all sigma_i are
    equal. It follows the weights of each round.

    Like the clients' noise in this paper, it is no guarantee, and changes nothing of what the server sees. Where
    clients train with DP-SGD, their noise is for all rounds: set R = T, and nothing is added.
    """

    rule: ClassVar[str] = "two-sided"
    revelations: int = 1
    inner: ServerStep = field(default_factory=Add)

    def __post_init__(self) -> None:
        if self.revelations < 1:
            raise ValueError(f"revelations: expected 1 or more, found {self.revelations}")

    def start(self, models: Tensor) -> State:
        """No noise before the first updates."""
        return {**self.inner.start(models), "deviation": torch.zeros(1, dtype=torch.float64)}

    def observe(self, view: RoundView, weights: Tensor, state: State) -> State:
        """Compute the deviation from the weights of the round."""
        shares = weights * (view.planned_noise / view.layout.size).sqrt()
        missing = (view.rounds / self.revelations) ** 2 * shares.square().max() - shares.square().sum()
        return {**self.inner.observe(view, weights, state), "deviation": missing.clamp_min(0.0).sqrt()[None]}

    def step(self, models: Tensor, move: Tensor, state: State, rng: ServerRng) -> tuple[Tensor, State]:
        """Let the inner step move, and add the noise once for these updates."""
        models, state = self.inner.step(models, move, state, rng)
        noise = state["deviation"] * rng.normal("server noise", *models.shape)
        return models + noise.to(models.dtype), {**state, "deviation": torch.zeros_like(state["deviation"])}


@dataclass(frozen=True)
class Ema(_Around):
    """Release an exponential average of the models that another step trains: noise averages out, the signal stays."""

    rule: ClassVar[str] = "ema"
    decay: float = 0.9
    inner: ServerStep = field(default_factory=Add)

    def __post_init__(self) -> None:
        if not 0 < self.decay < 1:
            raise ValueError(f"decay: expected a number between 0 and 1, found {self.decay}")

    def start(self, models: Tensor) -> State:
        """An empty average."""
        return {**self.inner.start(models), "sum": torch.zeros_like(models), "mass": torch.zeros(1)}

    def step(self, models: Tensor, move: Tensor, state: State, rng: ServerRng) -> tuple[Tensor, State]:
        """Let the inner step move, then take its models in."""
        models, state = self.inner.step(models, move, state, rng)
        total = self.decay * state["sum"] + (1 - self.decay) * models
        return models, {**state, "sum": total, "mass": self.decay * state["mass"] + (1 - self.decay)}

    def released(self, models: Tensor, state: State) -> Tensor:
        """The average, without the pull of its empty start."""
        return state["sum"] / state["mass"] if bool(state["mass"] > 0) else models


@dataclass(frozen=True)
class Recent(_Around):
    """Release an average of the models of about the last `share` of the rounds so far.

    An exponential average whose horizon grows with the run, 1 / max(1, share t) of the newest model in round t
    (polynomial-decay averaging, Shamir and Zhang 2013): it lags behind by the same part of any run. In the first
    1 / share rounds the newest model is released as it is.
    """

    rule: ClassVar[str] = "recent"
    share: float = 0.05
    inner: ServerStep = field(default_factory=Add)

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share: expected a number above 0 and at most 1, found {self.share}")

    def start(self, models: Tensor) -> State:
        """No rounds."""
        return {**self.inner.start(models), "mean": models, "rounds": torch.zeros(1)}

    def step(self, models: Tensor, move: Tensor, state: State, rng: ServerRng) -> tuple[Tensor, State]:
        """Let the inner step move, then take its models in."""
        models, state = self.inner.step(models, move, state, rng)
        rounds = state["rounds"] + 1
        newest = 1.0 / max(1.0, self.share * float(rounds))
        return models, {**state, "mean": torch.lerp(state["mean"], models, newest), "rounds": rounds}

    def released(self, models: Tensor, state: State) -> Tensor:
        """The average."""
        return state["mean"]


@dataclass(frozen=True)
class Tail(_Around):
    """Release the mean of all models since round `start_round`."""

    rule: ClassVar[str] = "tail"
    start_round: int = 10
    inner: ServerStep = field(default_factory=Add)

    def __post_init__(self) -> None:
        if self.start_round < 1:
            raise ValueError(f"start_round: expected 1 or more, found {self.start_round}")

    def start(self, models: Tensor) -> State:
        """An empty mean."""
        return {**self.inner.start(models), "sum": torch.zeros_like(models), "rounds": torch.zeros(1)}

    def step(self, models: Tensor, move: Tensor, state: State, rng: ServerRng) -> tuple[Tensor, State]:
        """Let the inner step move, and count its models in once the tail has begun."""
        models, state = self.inner.step(models, move, state, rng)
        rounds = state["rounds"] + 1
        total = state["sum"] + models if bool(rounds >= self.start_round) else state["sum"]
        return models, {**state, "sum": total, "rounds": rounds}

    def released(self, models: Tensor, state: State) -> Tensor:
        """The mean of the tail, or the last model before it begins."""
        counted = state["rounds"] - self.start_round + 1
        return state["sum"] / counted if bool(counted > 0) else models
