"""Mutants: wrong versions of single lines of the source, each with the test of the ordinary run that fails on it.

`failing_tests` applies one to a copy of the source and runs the tests named for it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT

Edit = tuple[str, str, str]


@dataclass(frozen=True)
class Mutant:
    """What is wrong, the edits (file below src/hush, text, text instead), and the tests that fail on it."""

    name: str
    what: str
    edits: tuple[Edit, ...]
    caught_by: tuple[str, ...]


def _release(name: str) -> tuple[str, ...]:
    return (f"tests/statistical/test_releases.py::test_release[{name}]",)


def _source(name: str) -> tuple[str, ...]:
    return (f"tests/statistical/test_releases.py::test_source[{name}]",)


def _mutant(name: str, what: str, file: str, old: str, new: str, *caught_by: str) -> Mutant:
    return Mutant(name, what, ((file, old, new),), caught_by)


_NOISED = "noised = [job.plan.privatise(total, job.source, job.vector.dtype) for"
_REACH = "return 0.5 * shape.loss_clip * math.sqrt(shape.models) *"
_SPREAD = "spread = stage.noise_of(release.what) * release.bound(shape)"
_BY_DEFAULT = "model update: protect = dp-sgd"
_CENTRED = "mean of the inputs: protect = dp-sgd, centre = 0.1"
_ADAPTIVE = "clip quantile: protect = dp-sgd, clip = adaptive"
_DISCLOSED = "tests/deploy/member/test_disclosures.py::test_every_number_has_the_noise_that_is_charged_for_it[0.0]"
_CHOICE = "cluster choice: assign = by-loss, every = 1"

MUTANTS = (
    _mutant(
        "last-step-no-noise", "the last step of a round is not noised", "training/eager.py", _NOISED,
        "noised = [(job.plan.privatise(total, job.source, job.vector.dtype) "
        "if step < job.plan.steps - 1 or job.plan.discrete else total / job.plan.batch) for",
        *_release(f"draws of {_BY_DEFAULT}"),
    ),
    _mutant(
        "noise-same-every-step", "all steps of a round add the same noise", "privacy/plan.py",
        "noise = source.normal(clipped_sum.numel(), drawn or clipped_sum.dtype).to(clipped_sum.device)",
        "noise = source.__dict__.setdefault('_kept', source.normal(clipped_sum.numel(), drawn or clipped_sum.dtype))",
        *_release(f"draws of {_BY_DEFAULT}"),
    ),
    _mutant(
        "bias-not-in-norm", "the closed form leaves the bias out of a gradient's norm", "training/closed_form.py",
        "squared_norms(rows, precisely) + (1.0 if biased else 0.0)", "squared_norms(rows, precisely) + 0.0",
        *_release(f"bound of {_BY_DEFAULT}"),
    ),
    _mutant(
        "linear-batch-capped", "the closed form uses at most the expected batch size", "training/closed_form.py",
        "active, limit = len(vectors), self.physical_batch",
        "active, limit = len(vectors), self.physical_batch; "
        "rows = [own[: job.plan.batch] for own, job in zip(rows, jobs, strict=False)]",
        *_release(f"rate of {_BY_DEFAULT}"),
    ),
    _mutant(
        "centre-bound-x3", "rows are clipped at three times the accounted bound before summation",
        "engines/enrolment.py", "total = bounded_sum(x, limit, ", "total = bounded_sum(x, 3 * limit, ",
        *_release(f"bound of {_CENTRED}"),
    ),
    _mutant(
        "centre-noise-per-coordinate", "the noise of the mean is not scaled by its bound, the square root of the width",
        "engines/enrolment.py", "noised = total + spread * limit * source", "noised = total + spread * source",
        *_release(f"draws of {_CENTRED}"),
    ),
    _mutant(
        "enrolment-count-noise-tenth", "the noisy count has one tenth of its noise", "engines/enrolment.py",
        "count = samples + stage.noise_of(COUNT) *", "count = samples + 0.1 * stage.noise_of(COUNT) *",
        *_release("draws of number of training samples: weight = samples, counts = noisy"),
    ),
    _mutant(
        "below-unnoised", "the clip quantile is released without noise", "engines/side_releases.py",
        _SPREAD, f"{_SPREAD} * (0.0 if release.sampled else 1.0)",
        *_release(f"draws of {_ADAPTIVE}"),
    ),
    _mutant(
        "below-on-all-rows", "the clip quantile is computed on all rows, but charged as on a batch",
        "engines/side_releases.py",
        "rows = given.plan.batch_rows(source, given.persons).to(given.x.device)",
        "rows = torch.arange(given.plan.samples)",
        *_release(f"rate of {_ADAPTIVE}"),
    ),
    _mutant(
        "loss-reach-half", "half of the sensitivity of the losses is accounted", "recipes/slots/clusters.py", _REACH,
        "return 0.25 * shape.loss_clip * math.sqrt(shape.models) *", *_release(f"bound of {_CHOICE}"),
    ),
    _mutant(
        "loss-reach-no-sqrt", "a row is assumed to change the loss of one model only", "recipes/slots/clusters.py",
        _REACH, "return 0.5 * shape.loss_clip *", *_release(f"bound of {_CHOICE}"),
    ),
    _mutant(
        "loss-not-lowered", "losses are not shifted by half their bound", "training/queries.py",
        ".clamp(0.0, bound) - 0.5 * bound", ".clamp(0.0, bound)", *_release(f"bound of {_CHOICE}"),
    ),
    Mutant(
        "replace-plain-gaussian-as-add", "replace-one for a Gaussian is accounted as add-remove",
        (
            ("privacy/accounting/pld.py", 'noise / 2.0 if relation == "replace-one" else noise', "noise"),
            (
                "privacy/accounting/api.py",
                'twice = 2.0 if relation == "replace-one" else 1.0\n    if accountant',
                "twice = 1.0\n    if accountant",
            ),
        ),
        ("tests/privacy/accounting/test_api.py::test_replace_one_of_a_gaussian_is_half_the_noise",),
    ),
    _mutant(
        "norm-in-float32", "squared gradients are summed in float32", "training/clipping.py",
        "dim=-1, dtype=torch.float64)", "dim=-1).double()",
        "tests/training/per_example/test_sums.py::test_gradient_whose_square_overflows_is_clipped_not_dropped",
    ),
    _mutant(
        "secure-noise-clamped-3", "secure noise is truncated at 3 standard deviations", "privacy/noise.py",
        "return torch.from_numpy(drawn).to(dtype)", "return torch.from_numpy(drawn).clamp(-3, 3).to(dtype)",
        *_source("source_tails"),
    ),
    _mutant(
        "secure-radius-16-bits", "the radius of secure noise has 16 bits: none is beyond 4.9 standard deviations",
        "privacy/box_muller.py",
        "    np.multiply(radius, 2.0**-63, out=radius)\n",
        "    np.multiply(radius, 2.0**-63, out=radius)\n    radius[:] = (np.floor(radius * 65536) + 0.5) / 65536\n",
        *_source("source_tails"), "tests/privacy/test_box_muller.py::test_the_radius_has_63_bits[float32]",
    ),
    _mutant(
        "secure-radius-32-bits", "the radius of secure noise has 32 bits", "privacy/box_muller.py",
        "    np.multiply(radius, 2.0**-63, out=radius)\n",
        "    np.multiply(radius, 2.0**-63, out=radius)\n    radius[:] = (np.floor(radius * 2**32) + 0.5) / 2**32\n",
        "tests/privacy/test_box_muller.py::test_the_radius_has_63_bits[float32]",
    ),
    _mutant(
        "secure-key-constant", "every stretch of secure bits has the same key", "privacy/secure_bits.py",
        "cipher.algorithms.AES(os.urandom(KEY_BYTES)), cipher.modes.CTR(os.urandom(16))",
        "cipher.algorithms.AES(bytes(KEY_BYTES)), cipher.modes.CTR(bytes(16))",
        *_source("source_streams"), "tests/privacy/test_secure_bits.py::test_nothing_is_drawn_twice[100000]",
    ),
    _mutant(
        "secure-noise-given-twice", "secure numbers that were drawn ahead are given again", "privacy/noise.py",
        "given, self._waiting = self._waiting[:size], self._waiting[size:]", "given = self._waiting[:size]",
        "tests/privacy/test_box_muller.py::test_a_source_gives_every_number_once[410]",
    ),
    _mutant(
        "secure-noise-shared-by-fork", "after a fork, both processes use what was drawn ahead", "privacy/noise.py",
        "if self._process != os.getpid():", "if False:",
        "tests/privacy/test_secure_bits.py::test_two_processes_after_a_fork_draw_different_noise_and_rows",
    ),
    _mutant(
        "secure-rows-seeded", "all secure sources sample the same batches", "privacy/noise.py",
        "        self._process, self._rows, self._normals = os.getpid(), RowSampler(words), NormalSampler(_normal)",
        "        g = np.random.default_rng(0)\n"
        "        rows = RowSampler(lambda n: g.integers(0, 2**63, n, dtype=np.uint64) * np.uint64(2))\n"
        "        self._process, self._rows, self._normals = os.getpid(), rows, NormalSampler(_normal)",
        *_source("source_streams"),
    ),
    _mutant(
        "discrete-sigma-half", "discrete noise has half its scale", "privacy/plan.py",
        "source.discrete(whole.numel(), GRAINS)", "source.discrete(whole.numel(), GRAINS // 2)",
        *_release("noise of model update: discrete noise"),
    ),
    _mutant(
        "ledger-same-cost-once", "a ledger counts equal costs once", "privacy/ledger/totals.py",
        "summed[key] = summed.get(key, 0) + cost.steps", "summed[key] = max(summed.get(key, 0), cost.steps)",
        "tests/privacy/ledger/test_ledger.py::test_rounds_are_charged_until_the_budget_is_spent[memory]",
    ),
    _mutant(
        "ledger-slack-5pc", "a ledger in memory allows spending five percent more", "privacy/ledger/totals.py",
        "return spent <= policy.epsilon + SLACK", "return spent <= 1.05 * policy.epsilon + SLACK",
        "tests/privacy/ledger/test_memory.py::test_a_budget_is_kept_to_a_thousandth[simulated]",
    ),
    _mutant(
        "filter-slack-5pc", "the privacy filter allows spending five percent more", "privacy/ledger/account.py",
        "return replace(policy, epsilon=policy.epsilon + SLACK)",
        "return replace(policy, epsilon=1.05 * policy.epsilon + SLACK)",
        "tests/privacy/ledger/test_adaptive_runs.py::test_the_filter_alone_keeps_a_lifetime",
    ),
    Mutant(
        "stored-slack-5pc", "a ledger file allows spending five percent more, by its own check and by the filter's",
        (
            ("privacy/ledger/totals.py", "return spent <= policy.epsilon + SLACK",
             "return spent <= 1.05 * policy.epsilon + SLACK"),
            ("privacy/ledger/account.py", "return replace(policy, epsilon=policy.epsilon + SLACK)",
             "return replace(policy, epsilon=1.05 * policy.epsilon + SLACK)"),
        ),
        ("tests/privacy/ledger/test_memory.py::test_a_budget_is_kept_to_a_thousandth[stored]",
         "tests/privacy/ledger/test_ledger.py::test_a_second_run_goes_on_from_what_is_spent"),
    ),
    _mutant(
        "adaptive-noise-at-old-clip", "with an adaptive clip, the noise keeps the scale of the configured clip",
        "engines/client_round.py", "plan = replace(plan, clip=extras.clip)",
        "plan = replace(plan, clip=extras.clip, noise_multiplier=plan.noise_multiplier * plan.clip / extras.clip)",
        *_release("draws of model update: protect = dp-sgd, clip = adaptive"),
    ),
    _mutant(
        "still-without-noise", "warm-up rounds, in which the model does not change, are not "
        "noised", "training/eager.py", _NOISED,
        "noised = [(total / job.plan.batch if job.at_start and not job.plan.discrete "
        "else job.plan.privatise(total, job.source, job.vector.dtype)) for",
        *_release("draws of model update: local = control-variates, warm = 2"),
    ),
    _mutant(
        "embedding-duplicates-apart", "a token's gradients at two positions are clipped separately",
        "training/per_example/layers.py",
        "pairs, place = (examples * size + self.index.remainder(size)).unique(return_inverse=True)",
        "flat = examples * size + self.index; pairs, place = flat.flatten(), torch.arange(flat.numel())",
        "tests/training/per_example/test_layers.py::test_sums_equal_the_definition[embedding]",
    ),
    _mutant(
        "gaussian-cost-counted-once", "releases on all rows are accounted once, regardless of how often they occur",
        "privacy/accounting/events.py", "steps[key] = steps.get(key, 0) + cost.steps",
        "steps[key] = steps.get(key, 0) + (1 if cost.kind == 'gaussian' else cost.steps)",
        "tests/privacy/test_schedule.py::test_all_stages_together_keep_the_budget_and_hardly_less[add-remove]",
    ),
    _mutant(
        "resume-skips-enrolment", "a resumed run does not count what enrolment cost", "engines/simulator.py",
        "    if federation.terms.stage_table.of[ENROLMENT] >= 0:\n        for member",
        "    if False:\n        for member",
        "tests/end_to_end/test_lifetime.py::test_noisy_counts_survive_a_resume",
    ),
    _mutant(
        "resume-skips-last-round", "a resumed run does not count its last round", "engines/simulator.py",
        "    for record in records:\n        for client in record.charged:",
        "    for record in records[:-1]:\n        for client in record.charged:",
        "tests/end_to_end/test_simulate.py::test_resume_is_bit_identical[1]",
    ),
    _mutant(
        "full-batch-charged-as-sampled", "a full batch is charged as a sampling rate of 1/5", "privacy/schedule.py",
        "trained = (self.plan.cost(rounds),) if self.spec.train and not self.spec.idle else ()",
        "trained = ((replace(self.plan.cost(rounds), rate=min(1.0, 0.2)) if self.spec.full_batch "
        "else self.plan.cost(rounds)),) if self.spec.train and not self.spec.idle else ()",
        *_release("rate of model update: assign = gmm-then-loss, every = 1"),
    ),
    _mutant(
        "even-sampled-at-batch-rate", "rows are sampled at rate B/N, but 1/ceil(N/B) is charged", "privacy/plan.py",
        "return source.chosen(self.samples, self.rate)",
        "return source.chosen(self.samples, self.batch / self.samples)",
        *_release("rate of model update: protect = dp-sgd, sampler = even"),
    ),
    _mutant(
        "tied-heads-always-in", "a row whose first 16 random bits equal those of the rate is always "
        "sampled", "privacy/noise.py",
        "inside[tied] = (self._words(len(tied)) >> np.uint64(27)) < low", "inside[tied] = True",
        *_source("sampling_rates"),
    ),
    _mutant(
        "fixed-not-halved", "batches of a fixed size are accounted under add-remove",
        "privacy/accounting/events.py",
        "_fixed_step(part.samples, part.batch, part.noise / halved)",
        "_fixed_step(part.samples, part.batch, part.noise)",
        "tests/privacy/accounting/test_fixed_batches.py::test_a_full_batch_is_a_plain_gaussian_under_replace_one",
    ),
    _mutant(
        "pld-one-cell-low", "the privacy loss is one grid cell too low", "privacy/accounting/pld.py",
        "start = low + sum(", "start = low - 1 + sum(",
        "tests/privacy/accounting/test_api.py::test_epsilon_is_that_of_dp_accounting_on_the_same_grid[event0-1e-06-add-remove]",
    ),
    _mutant(
        "enrol-ignored-by-calibration", "noise is calibrated without the cost of enrolment", "privacy/schedule.py",
        "for s in self.stages if s.rounds for cost in s.costs(s.rounds + s.spare))",
        "for s in self.stages if s.rounds and s.spec.train for cost in s.costs(s.rounds + s.spare))",
        "tests/training/test_input_mean.py::test_every_budget_is_kept_and_used",
    ),
    _mutant(
        "choice-noise-common", "all loss sums of a choice have the same noise", "engines/side_releases.py",
        "return total + spread * source.normal(len(total), torch.float64)",
        "return total + spread * source.normal(len(total) if release.sent else 1, torch.float64)",
        *_release(f"draws of {_CHOICE}"),
    ),
    _mutant(
        "centre-bound-by-root", "rows are scaled by the square root of the factor by which they exceed the bound",
        "training/input_mean.py",
        "scale = torch.where(finite, limit / norms.clamp_min(limit), 0.0)",
        "scale = torch.where(finite, (limit / norms.clamp_min(limit)).sqrt(), 0.0)", *_release(f"bound of {_CENTRED}"),
    ),
    _mutant(
        "anchor-not-checked", "a ledger is not compared with its stored head",
        "privacy/ledger/anchor.py", "    if known is None:\n        return\n", "    return\n",
        "tests/crash/test_ledger_damage.py::test_a_lost_log_is_detected",
    ),
    _mutant(
        "receipt-before-commit", "a receipt is given before the disk has the charge", "privacy/ledger/ledger.py",
        '_SYNCHRONOUS = "FULL"', '_SYNCHRONOUS = "OFF"', "tests/crash/test_ledger_disk.py::test_fsync_errors",
    ),
    _mutant(
        "seal-not-checked", "bytes that were not sealed can be sent", "privacy/ledger/ledger.py",
        "if charge.state not in (READY, SENT) or charge.sha256 != digest:", "if charge.state not in (READY, SENT):",
        "tests/privacy/ledger/test_ledger.py::test_only_what_was_sealed_is_sent[memory]",
    ),
    _mutant(
        "secure-pair-correlated", "the two halves of a draw of secure noise are correlated", "privacy/box_muller.py",
        "torch.sin(torch.from_numpy(angle), out=torch.from_numpy(angle))",
        "torch.cos(torch.from_numpy(angle + 1.0), out=torch.from_numpy(angle))", *_release(f"noise of {_CENTRED}"),
    ),
    _mutant(
        "secure-noise-repeated", "secure noise repeats itself every 8,192 numbers", "privacy/noise.py",
        "return torch.from_numpy(drawn).to(dtype)",
        "return torch.from_numpy(drawn[:8192]).repeat(size // 8192 + 1)[:size].to(dtype)",
        "tests/privacy/test_noise.py::test_no_number_of_a_draw_is_there_twice[secure]",
    ),
    _mutant(
        "secure-noise-of-24-bits", "secure noise ends at 5.8 standard deviations", "privacy/box_muller.py",
        "np.maximum(radius, _LEAST, out=radius)", "np.maximum(radius, 2.0**-24, out=radius)",
        "tests/privacy/test_noise.py::test_secure_noise_reaches_as_far_as_its_bits_allow",
    ),
    _mutant(
        "batches-ahead-alike", "batches that are drawn ahead are the same", "privacy/noise.py",
        "heads = self._words(-(-whole // 4)).view(np.uint16)[:whole]",
        "heads = np.tile(self._words(-(-size // 4)).view(np.uint16)[:size], self._batches)",
        *_source("source_streams"),
    ),
    _mutant(
        "discrete-noise-cut-at-3", "discrete noise is truncated at 3 standard deviations", "privacy/discrete.py",
        "y = y[y.abs() < 180 * sigma]", "y = y[y.abs() < 3 * sigma]",
        "tests/statistical/test_discrete.py::test_distribution[secure-1]",
    ),
    _mutant(
        "disclosed-noise-tenth", "numbers that a member discloses have one tenth of their noise",
        "deploy/member/disclosures.py", "self.value + self.noise * self.row * normal()",
        "self.value + 0.1 * self.noise * self.row * normal()", _DISCLOSED,
    ),
    _mutant(
        "disclosed-noise-without-row", "the noise of a disclosed number is not scaled by what a row changes in it",
        "deploy/member/disclosures.py", "self.value + self.noise * self.row * normal()",
        "self.value + self.noise * normal()", _DISCLOSED,
    ),
    _mutant(
        "mean-over-true-count", "the noisy mean is divided by the true count where only a noisy one is disclosed",
        "engines/enrolment.py",
        "known, (x, persons) = rounded_count(count) if stage.noise_of(COUNT) else samples, rows(client)",
        "known, (x, persons) = samples, rows(client)",
        "tests/engines/test_noisy_counts.py::test_neighbours_that_disclosed_the_same_count_release_the_same_mean",
    ),
    _mutant(
        "tightened-still-approved", "what was approved before a policy was tightened is still approved",
        "privacy/ledger/ledger.py", "            self._approved = {}\n\n    def seal", "\n    def seal",
        "tests/privacy/ledger/test_ledger.py::"
        "test_what_was_approved_before_a_tighter_policy_is_no_longer_approved[memory]",
    ),
    _mutant(
        "clip-without-slack", "gradients are clipped without room for the rounding of sums", "training/clipping.py",
        "return (1.0 - 4.0 * torch.finfo(dtype).eps) / (1.0 + SLACK)", "return 1.0 - 4.0 * torch.finfo(dtype).eps",
        "tests/training/per_example/test_discrete_sums.py::test_sums_are_those_in_floating_point_but_for_rounding",
    ),
    _mutant(
        "huge-norms-scaled", "gradients whose factor has no significant digits are summed", "training/clipping.py",
        "keep = keep & (norms / RANGE <= clips)", "keep = keep & (clips > 0)",
        "tests/training/per_example/test_sums.py::test_factors_are_rounded_toward_zero",
    ),
    _mutant(
        "mean-with-nan", "a row that is not a number makes the mean one that is not", "training/input_mean.py",
        "rows.masked_fill(~finite[:, None], 0.0)", "rows", *_release(f"bound of {_CENTRED}"),
    ),
    _mutant(
        "quantile-counts-whole", "a row changes the clip quantile by twice its accounted bound",
        "engines/side_releases.py", "return (within - 0.5).sum()[None]", "return (2.0 * within - 1.0).sum()[None]",
        *_release(f"bound of {_ADAPTIVE}"),
    ),
)  # fmt: skip


def failing_tests(mutant: Mutant | None, directory: Path, tests: tuple[str, ...]) -> set[str]:
    """Which of the tests fail on a copy of the source, made in a directory, to which the mutant is applied."""
    copy = directory / "src"
    shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for file, old, new in mutant.edits if mutant is not None else ():
        path = copy / "hush" / file
        text = path.read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise LookupError(f"{mutant.name if mutant else ''}: {file} has {old!r} {text.count(old)} times")
        path.write_text(text.replace(old, new), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not soak", "-rA", "--tb=line", *tests],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = {
        word: [line for line in done.stdout.splitlines() if line.startswith(word)] for word in ("PASSED", "FAILED")
    }
    failed = {test for test in tests if any(line.startswith(f"FAILED {test}") for line in lines["FAILED"])}
    passed = {test for test in tests if f"PASSED {test}" in lines["PASSED"]}
    if missing := set(tests) - failed - passed:
        raise LookupError(f"not run: {', '.join(sorted(missing))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return failed
