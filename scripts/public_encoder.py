"""An encoder that is pretrained on public letters, for a private linear head on digits.

The letters of EMNIST (classes from A on; no digit is seen) train `hush.reproduce.nets:letter_encoder`, of which
`hush reproduce robust-hdp/table-12 --cells hush-encoder:` then uses the features. Run it from the repository, with
HUSH_DATA set: `python -m scripts.public_encoder` writes emnist-letters.safetensors, in some minutes on a CPU.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from hush.data.datasets import load
from hush.models.validation import seeded
from hush.reproduce.nets import letter_encoder
from hush.seeds import rng

OUT = Path("emnist-letters.safetensors")
DIGITS, LETTERS = 10, 37
EPOCHS, BATCH, RATE, DECAY, SMOOTHING = 10, 256, 3e-3, 1e-2, 0.05
TURN, STRETCH, SHIFT = 0.2, 0.15, 0.15  # of the augmentation: radians, and fractions of an image


def letters(root: str | None) -> tuple[Tensor, Tensor]:
    """Return the images of letters and their classes."""
    found = load("emnist47", root=root, part="all")
    kept = found.y >= DIGITS
    return torch.from_numpy(found.x[kept]), torch.from_numpy(found.y[kept] - DIGITS)


def augmented(x: Tensor, seed: int, step: int) -> Tensor:
    """Return images that are turned, stretched, slanted and shifted a little, each on its own."""
    drawn = torch.from_numpy(rng(seed, "augmentation", step).uniform(-1, 1, (6, len(x)))).float()
    turn, wide, high, slant = TURN * drawn[0], 1 + STRETCH * drawn[1], 1 + STRETCH * drawn[2], STRETCH * drawn[3]
    rows = [
        torch.stack([wide * turn.cos(), -high * turn.sin() + slant, SHIFT * drawn[4]], 1),
        torch.stack([wide * turn.sin(), high * turn.cos(), SHIFT * drawn[5]], 1),
    ]
    grid = functional.affine_grid(torch.stack(rows, 1).to(x.device), list(x.shape), align_corners=False)
    return functional.grid_sample(x, grid, padding_mode="border", align_corners=False)


def pretrained(x: Tensor, y: Tensor, *, epochs: int, seed: int, device: torch.device) -> nn.Module:
    """Return the encoder, trained with a linear head that is dropped afterwards."""
    with seeded(seed):
        encoder, head = letter_encoder(), nn.Linear(256, LETTERS)
    net = nn.Sequential(encoder, head).to(device)
    # Convolutions on a CPU are faster with channels last.
    net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x, y = x.to(device), y.to(device)
    steps = epochs * (len(x) // BATCH)
    optimiser = torch.optim.AdamW(net.parameters(), RATE, weight_decay=DECAY)
    start, step = time.perf_counter(), 0
    for epoch in range(epochs):
        order = torch.from_numpy(rng(seed, "order", epoch).permutation(len(x))).to(device)
        total = 0.0
        for rows in order[: len(x) // BATCH * BATCH].split(BATCH):
            for group in optimiser.param_groups:
                group["lr"] = RATE * min(1.0, step / (0.1 * steps)) * 0.5 * (1 + math.cos(math.pi * step / steps))
            with torch.autocast(device.type, torch.bfloat16):
                found = net(augmented(x[rows], seed, step).contiguous(memory_format=torch.channels_last))
            loss = functional.cross_entropy(found.float(), y[rows], label_smoothing=SMOOTHING)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            step, total = step + 1, total + float(loss.detach())
        took = time.perf_counter() - start
        print(f"epoch {epoch + 1} of {epochs}: loss {total / (len(x) // BATCH):.3f}, {took:.0f} s", flush=True)
    return encoder.cpu().eval()


def main() -> None:
    """Train the encoder and write its weights."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT, help="file of safetensors to write")
    parser.add_argument("--data", default=None, help="directory with the dataset files; else HUSH_DATA")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    x, y = letters(args.data)
    print(f"{len(x):,} images of letters", flush=True)
    encoder = pretrained(x, y, epochs=args.epochs, seed=args.seed, device=torch.device(args.device))
    save_file({name: value.contiguous() for name, value in encoder.state_dict().items()}, args.out)
    print(f"{args.out}: {args.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
