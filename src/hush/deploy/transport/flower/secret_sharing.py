"""Secret sharing, key agreement and encryption of secure aggregation, as Flower ships them.

Two of Flower's primitives are not used (ADR 0041): its generator of masks reduces a key to 32 bits and expands it with
the Mersenne Twister, both of which can be undone, and its quantisation draws from NumPy's global random state.
"""

from __future__ import annotations

from collections.abc import Sequence

from cryptography.fernet import InvalidToken
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.secure_aggregation.crypto import shamir, symmetric_encryption
from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_concat, share_keys_plaintext_separate
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, public_key_to_bytes

from hush.types import HushError

Key = ec.EllipticCurvePrivateKey


def public_bytes(key: Key) -> bytes:
    """Return the public key in PEM."""
    found: bytes = public_key_to_bytes(key.public_key())
    return found


def shared_key(key: Key, other: bytes) -> bytes:
    """Return the secret that a private key and another party's public key have in common, or raise a `HushError`."""
    try:
        found: bytes = symmetric_encryption.generate_shared_key(key, bytes_to_public_key(other))
        return found
    except Exception as error:  # a public key from a message may be anything
        raise HushError(f"secure aggregation: not a public key on the agreed curve ({type(error).__name__})") from None


def split(secret: bytes, threshold: int, number: int) -> list[bytes]:
    """Return so many shares of a secret, of which `threshold` restore it and fewer tell nothing."""
    found: list[bytes] = shamir.create_shares(secret, threshold, number)
    return found


def joined(shares: Sequence[bytes]) -> bytes | None:
    """Return the secret of these shares, or None if they do not belong together."""
    try:
        found: bytes = shamir.combine_shares(list(shares))
        return found
    except Exception:  # shares from members may be anything
        return None


def sealed_shares(key: bytes, sender: int, receiver: int, own: bytes, mask: bytes) -> bytes:
    """Encrypt the shares of a sender's two secrets for one receiver."""
    found: bytes = symmetric_encryption.encrypt(key, share_keys_plaintext_concat(sender, receiver, own, mask))
    return found


def opened_shares(key: bytes, sender: int, receiver: int, content: bytes) -> tuple[bytes, bytes]:
    """Decrypt such shares, or raise a `HushError` if they are not from this sender for this receiver."""
    try:
        found, to, own, mask = share_keys_plaintext_separate(symmetric_encryption.decrypt(key, content))
    except InvalidToken:
        raise HushError("secure aggregation: shares that were not encrypted for this member") from None
    if (found, to) != (sender, receiver):
        raise HushError("secure aggregation: shares of another sender or receiver")
    return own, mask
