"""Masks of secure aggregation: keys, shares and masked numbers of one member in one attempt at a sum.

The protocol is that of Bonawitz et al. (2017, https://doi.org/10.1145/3133956.3133982). To its integers modulo 2^32
each member adds a mask of its own, and one for each other member, which that member subtracts. All masks are expanded
from keys with AES-256 in counter mode. Shares of both kinds of keys are with the other members, so that a threshold of
them can remove the own masks of those that were summed, and the pairwise masks of those that were not.

Guarantees:
    - Keys are new in every attempt. A member reveals for another either the share of its own mask or that of its key,
      never both: what it reveals is fixed by the first list that it answers.
    - A member whose process ends has lost its keys. It is then one of those that are missing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from torch import Tensor

from hush.privacy.secure_bits import fresh_key
from hush.types import HushError

_CURVE = ec.SECP256R1()
_SECRET = 31  # bytes: below the order of the curve, and two blocks of Shamir's scheme
_BLOCK = 1 << 20  # numbers that are expanded at a time


def _sharing() -> Any:
    """Flower's primitives. It is loaded where a sum is formed, and not needed otherwise."""
    from hush.deploy.transport.flower import secret_sharing

    return secret_sharing


@dataclass(frozen=True)
class PublicKeys:
    """What a member publishes for one attempt: two public keys, and a digest of the secret of its own mask."""

    mask: bytes
    sealing: bytes
    own: str


class MaskedMember:
    """One member's secrets for one attempt. Members are known by their client numbers."""

    def __init__(self, client: int, threshold: int) -> None:
        self.client, self.threshold = client, threshold
        self._own, secret = _secret(), _secret()
        self._secret, self._mask = secret, _private(secret)
        self._sealing = _private(_secret())
        self._peers: dict[int, PublicKeys] = {}
        self._shares: dict[int, tuple[bytes, bytes]] = {}
        self._sent: dict[int, bytes] = {}
        self._revealed: tuple[frozenset[int], frozenset[int]] | None = None
        flower = _sharing()
        self.keys = PublicKeys(
            flower.public_bytes(self._mask), flower.public_bytes(self._sealing), hashlib.sha256(self._own).hexdigest()
        )

    def shares(self, peers: Mapping[int, PublicKeys]) -> dict[int, bytes]:
        """Return encrypted shares of this member's secrets for each other member; asked again, the same ones."""
        if self._peers:
            if dict(peers) != self._peers:
                raise HushError("secure aggregation: the keys of this attempt were already given, and differ")
            return dict(self._sent)
        listed = [key for each in peers.values() for key in (each.mask, each.sealing)]
        if peers.get(self.client) != self.keys or len(set(listed)) != len(listed):
            raise HushError("secure aggregation: a key is listed twice, or this member's are not as it sent them")
        if len(peers) < self.threshold:
            raise HushError(f"secure aggregation: keys of {len(peers)} members; accepted: {self.threshold} or more")
        flower, order = _sharing(), sorted(peers)
        pairs = [flower.split(secret, self.threshold, len(order)) for secret in (self._own, self._secret)]
        found = {}
        for to, own, mask in zip(order, *pairs, strict=True):
            if to == self.client:
                self._shares[to] = (own, mask)
                continue
            found[to] = flower.sealed_shares(self._pair(peers[to].sealing), self.client, to, own, mask)
        self._peers, self._sent = dict(peers), found
        return dict(found)

    def receive(self, shares: Mapping[int, bytes]) -> None:
        """Take the others' encrypted shares. Those who sent some, and this member, are who is summed."""
        if not self._peers:
            raise HushError("secure aggregation: this member has no keys for this attempt")
        if len(self._shares) > 1:
            if set(shares) != set(self._shares) - {self.client}:
                raise HushError("secure aggregation: the shares of this attempt were already given, and differ")
            return
        if not set(shares) <= set(self._peers) - {self.client}:
            raise HushError("secure aggregation: shares of members that sent no keys")
        if len(shares) + 1 < self.threshold:
            raise HushError(
                f"secure aggregation: shares of {len(shares) + 1} members; accepted: {self.threshold} or more"
            )
        flower = _sharing()
        opened = {
            peer: flower.opened_shares(self._pair(self._peers[peer].sealing), peer, self.client, content)
            for peer, content in shares.items()
        }
        self._shares |= opened

    @property
    def summed(self) -> frozenset[int]:
        """Whose masks belong together, once shares were received."""
        return frozenset(self._shares) if len(self._shares) > 1 else frozenset()

    def masked(self, numbers: Tensor) -> Tensor:
        """Return numbers, int32, with this member's masks, in place."""
        if not self.summed:
            raise HushError("secure aggregation: this member has received no shares for this attempt")
        add_mask(numbers, self._own, 1)
        flower = _sharing()
        for peer in sorted(self.summed - {self.client}):
            pair = flower.shared_key(self._mask, self._peers[peer].mask)
            add_mask(numbers, pair, 1 if self.client < peer else -1)
        return numbers

    def reveal(self, survivors: Collection[int]) -> tuple[dict[int, bytes], dict[int, bytes]]:
        """Return shares of the survivors' own masks, and of the others' keys; for one list of survivors alone."""
        alive, everyone = frozenset(survivors), self.summed
        if not alive <= everyone or self.client not in alive or len(alive) < self.threshold:
            raise HushError(
                f"secure aggregation: a sum of {len(alive)} members; accepted: {self.threshold} or more of those that "
                "are masked together, with this member among them"
            )
        asked = (alive, everyone - alive)
        if self._revealed not in (None, asked):
            raise HushError("secure aggregation: this member has already revealed shares for another sum")
        self._revealed = asked
        return {peer: self._shares[peer][0] for peer in alive}, {
            peer: self._shares[peer][1] for peer in everyone - alive
        }

    def _pair(self, other: bytes) -> bytes:
        found: bytes = _sharing().shared_key(self._sealing, other)
        return found


def unmask(
    total: Tensor,
    keys: Mapping[int, PublicKeys],
    summed: Collection[int],
    survivors: Collection[int],
    revealed: Mapping[int, tuple[Mapping[int, bytes], Mapping[int, bytes]]],
    threshold: int,
) -> Tensor:
    """Remove all masks from the sum of the survivors' masked numbers, in place, or raise a `HushError`.

    Args:
        total: The sum of the masked numbers, int32.
        keys: The public keys of all.
        summed: Whose masks belong together.
        survivors: Whose numbers are in the sum.
        revealed: By the member who revealed them, the shares of survivors' own masks and of the others' keys.
        threshold: How many shares restore a secret.
    """
    flower = _sharing()
    for member in sorted(survivors):
        shares = [own[member] for own, _ in revealed.values() if member in own]
        add_mask(total, _restored(shares, threshold, partial(_is_own, keys[member])), -1)
    for member in sorted(set(summed) - set(survivors)):
        shares = [mask[member] for _, mask in revealed.values() if member in mask]
        key = _private(_restored(shares, threshold, partial(_is_key, keys[member])))
        for other in sorted(survivors):
            add_mask(total, flower.shared_key(key, keys[other].mask), -1 if other < member else 1)
    return total


def _is_own(keys: PublicKeys, secret: bytes) -> bool:
    return hashlib.sha256(secret).hexdigest() == keys.own


def _is_key(keys: PublicKeys, secret: bytes) -> bool:
    found: bytes = _sharing().public_bytes(_private(secret))
    return found == keys.mask


def _restored(shares: Sequence[bytes], threshold: int, right: Callable[[bytes], bool]) -> bytes:
    """Return the secret of these shares that passes a test, also if one of them is wrong and there are enough."""
    flower = _sharing()
    for chosen in _choices(shares, threshold):
        secret: bytes | None = flower.joined(chosen)
        if secret is not None and len(secret) == _SECRET and right(secret):
            return secret
    raise HushError(
        f"secure aggregation: {len(shares)} shares, of which no {threshold} restore a secret; the sum is lost"
    )


def _choices(shares: Sequence[bytes], threshold: int) -> Iterator[Sequence[bytes]]:
    """Yield a threshold of shares, then others without each of the first ones in turn."""
    if len(shares) < threshold:
        return
    yield shares[:threshold]
    if len(shares) > threshold:
        for left_out in range(threshold):
            yield [*shares[:left_out], *shares[left_out + 1 : threshold + 1]]


def add_mask(numbers: Tensor, key: bytes, sign: int) -> None:
    """Add the mask of a key to numbers, int32, modulo 2^32, or subtract it."""
    derived = HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=b"hush secure aggregation mask").derive(key)
    stream = Cipher(algorithms.AES(derived), modes.CTR(bytes(16))).encryptor()
    zeros = bytes(4 * min(_BLOCK, max(1, numbers.numel())))
    for start in range(0, numbers.numel(), _BLOCK):
        part = numbers[start : start + _BLOCK]
        drawn = torch.frombuffer(bytearray(stream.update(zeros[: 4 * part.numel()])), dtype=torch.int32)
        part.add_(drawn, alpha=sign)


def _secret() -> bytes:
    return bytes(fresh_key()[:_SECRET])


def _private(secret: bytes) -> ec.EllipticCurvePrivateKey:
    # Zero has no public key; its probability is 2^-248.
    return ec.derive_private_key(max(1, int.from_bytes(secret, "big")), _CURVE)
