"""Masks of secure aggregation: sums are exact whoever is missing, and tell nothing until enough members reveal."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("flwr", reason="needs the deploy extra")

import numpy as np
import torch
from torch import Tensor

from hush.deploy.shared.masks import MaskedMember, add_mask, unmask
from hush.recipes.secure_sums import majority
from hush.seeds import rng
from hush.types import HushError

SIZE = 11
STEPS = ("keys", "shares", "task", "reveal", "never")


class Protocol:
    """Members in an attempt at a sum; `ends` says in which step each of them falls silent."""

    def __init__(self, members: int, seed: int = 0, ends: dict[int, str] | None = None) -> None:
        self.threshold, self.ends = majority(members), ends or {}
        drawn = rng(seed, "numbers")
        # As large as numbers of a sum that does not wrap may be.
        most = (2**31 - 1) // members
        self.numbers = {
            c: torch.from_numpy(drawn.integers(-most, most, size=SIZE, endpoint=True).astype(np.int32))
            for c in range(members)
        }
        self.members = {c: MaskedMember(c, self.threshold) for c in range(members)}

    def left(self, step: str) -> list[int]:
        return [c for c in self.members if STEPS.index(self.ends.get(c, "never")) > STEPS.index(step)]

    def masked(self) -> dict[int, Tensor]:
        self.keys = {c: self.members[c].keys for c in self.left("keys")}
        self.sent = {c: self.members[c].shares(self.keys) for c in self.left("shares")}
        for c in self.left("task"):
            self.members[c].receive({p: shares[c] for p, shares in self.sent.items() if p != c})
        return {c: self.members[c].masked(self.numbers[c].clone()) for c in self.left("task")}

    def total(self) -> tuple[Tensor, Tensor]:
        """The sum of the masked numbers, and the sum after unmasking."""
        sent = self.masked()
        masked = torch.stack(list(sent.values())).sum(0, dtype=torch.int32)
        revealed = {c: self.members[c].reveal(sent) for c in self.left("reveal")}
        return masked, unmask(masked.clone(), self.keys, self.sent, sent, revealed, self.threshold)

    def plain(self) -> Tensor:
        return torch.stack([self.numbers[c] for c in self.left("task")]).sum(0)


def schedule(seed: int) -> Protocol:
    """Three to seven members, of whom a minority fall silent, each in a step of its own."""
    drawn = rng(seed, "schedule")
    members = int(drawn.integers(3, 8))
    missing = drawn.choice(members, int(drawn.integers(0, (members - 1) // 2 + 1)), replace=False)
    return Protocol(members, seed, {int(c): STEPS[int(drawn.integers(4))] for c in missing})


@pytest.mark.slow
def test_five_hundred_schedules_of_members_that_fall_silent_give_exact_sums() -> None:
    silent = set()
    for seed in range(500):
        protocol = schedule(seed)
        masked, total = protocol.total()
        assert torch.equal(total.long(), protocol.plain()), (seed, protocol.ends)
        assert not torch.equal(masked, total)
        silent |= {(len(protocol.members), step) for step in protocol.ends.values()}
    # Every number of members was tried with somebody missing in every step.
    assert len(silent) == 5 * 4


def test_one_member_more_missing_and_the_sum_is_lost() -> None:
    with pytest.raises(HushError, match="no 3 restore a secret; the sum is lost"):
        Protocol(5, ends={0: "reveal", 1: "reveal", 2: "reveal"}).total()
    with pytest.raises(HushError, match="shares of 2 members; accepted: 3 or more"):
        Protocol(5, ends={0: "shares", 1: "shares", 2: "shares"}).total()


def test_a_forgotten_mask_is_noticed_by_the_comparison() -> None:
    """The bug that the schedules must detect: the masks of a member that fell silent after its shares stay."""
    protocol = Protocol(4, ends={2: "task"})
    sent = protocol.masked()
    revealed = {c: protocol.members[c].reveal(sent) for c in sent}
    total = torch.stack(list(sent.values())).sum(0, dtype=torch.int32)
    found = unmask(total, protocol.keys, sent, sent, {c: (own, {}) for c, (own, _) in revealed.items()}, 3)
    assert not torch.equal(found.long(), protocol.plain())


def test_a_wrong_share_is_left_out_if_there_are_enough_others() -> None:
    for wrong in range(5):
        protocol = Protocol(5, ends={4: "task"} if wrong < 4 else {})
        sent = protocol.masked()
        revealed = {c: protocol.members[c].reveal(sent) for c in sent}
        own, keys = revealed[wrong]
        revealed[wrong] = ({c: share[:-1] + bytes([share[-1] ^ 1]) for c, share in own.items()}, keys)
        total = torch.stack(list(sent.values())).sum(0, dtype=torch.int32)
        found = unmask(total, protocol.keys, protocol.sent, sent, revealed, 3)
        assert torch.equal(found.long(), protocol.plain())


def test_masked_numbers_look_like_random_ones_and_differ_in_every_attempt() -> None:
    zeros = torch.zeros(100_000, dtype=torch.int32)
    found = []
    for _ in range(2):
        members = {c: MaskedMember(c, 2) for c in range(3)}
        keys = {c: member.keys for c, member in members.items()}
        sent = {c: member.shares(keys) for c, member in members.items()}
        members[0].receive({p: sent[p][0] for p in (1, 2)})
        found.append(members[0].masked(zeros.clone()))
    assert abs(float(torch.corrcoef(torch.stack(found).double())[0, 1])) < 0.02
    for masked in found:
        counts = torch.bincount((masked.view(torch.uint8)).long(), minlength=256).double()
        # 255 degrees of freedom: mean 255, deviation 22.6.
        assert float(((counts - counts.mean()).square() / counts.mean()).sum()) < 255 + 7 * 22.6


def test_masks_add_up_to_nothing_over_blocks() -> None:
    numbers = torch.arange((1 << 20) + 7, dtype=torch.int32)
    whole = numbers.clone()
    add_mask(whole, b"key", 1)
    assert float((whole == numbers).double().mean()) < 1e-4
    add_mask(whole, b"key", -1)
    assert torch.equal(whole, numbers)


def test_what_a_member_refuses() -> None:
    protocol = Protocol(5)
    sent = protocol.masked()
    first, second = protocol.members[0], protocol.members[1]
    with pytest.raises(HushError, match="already given, and differ"):
        first.shares({c: key for c, key in protocol.keys.items() if c != 4})
    assert first.shares(protocol.keys) == protocol.sent[0]
    first.reveal([0, 1, 2])
    first.reveal([2, 1, 0])
    with pytest.raises(HushError, match="already revealed shares for another sum"):
        first.reveal(sent)
    for listed in ([1, 2], [0, 1], [0, 1, 9]):
        with pytest.raises(HushError, match="a sum of"):
            second.reveal(listed)
    with pytest.raises(HushError, match="already given, and differ"):
        second.receive({0: protocol.sent[0][1]})


def test_shares_are_read_by_their_receiver_alone_and_keys_must_be_ones_own() -> None:
    members = {c: MaskedMember(c, 2) for c in range(3)}
    keys = {c: member.keys for c, member in members.items()}
    with pytest.raises(HushError, match="not as it sent them"):
        members[0].shares({**keys, 0: keys[1]})
    with pytest.raises(HushError, match="a key is listed twice"):
        members[0].shares({**keys, 2: replace(keys[2], mask=keys[1].mask)})
    with pytest.raises(HushError, match="not a public key on the agreed curve"):
        members[1].shares({**keys, 2: replace(keys[2], sealing=b"nothing")})
    sent = {c: members[c].shares(keys) for c in (0, 2)}
    other = MaskedMember(1, 2)
    with pytest.raises(HushError, match="has no keys for this attempt"):
        other.receive({0: sent[0][1]})
    with pytest.raises(HushError, match="not encrypted for this member"):
        members[0].receive({2: sent[2][1]})
