"""The cryptography that secure sums use, all of it from `cryptography` and `pycryptodome`.

Key agreement is X25519, keys are derived by HKDF with SHA-256, masks are the key stream of ChaCha20, shares are
encrypted by ChaCha20-Poly1305, and secrets are split by Shamir's scheme over GF(2^128).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

import numpy as np

from headwater.errors import MissingExtra

SEED, KEY, TAG = 16, 32, 16  # bytes of a secret that is shared, of a key, and of the tag of a sealed text
FIELD = 1 << 128 | 0x87  # x^128 + x^7 + x^2 + x + 1, over which `Crypto.Protocol.SecretSharing` joins shares


@lru_cache(maxsize=1)
def check_installed() -> None:
    """Refuse if the libraries are not there."""
    try:
        import Crypto.Protocol.SecretSharing  # noqa: F401
        import cryptography.hazmat.primitives.ciphers.aead  # noqa: F401
    except ImportError:
        raise MissingExtra("privacy.secure", "secure") from None


def derived(secret: bytes, purpose: str, length: int = KEY) -> bytes:
    """Bytes that follow from a secret, for one purpose."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), length, None, f"headwater {purpose}".encode()).derive(secret)


def _private(seed: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(derived(seed, "x25519"))


def public_of(seed: bytes) -> bytes:
    """The public key whose private key follows from a seed."""
    return cast(bytes, _private(seed).public_key().public_bytes_raw())


def agreed(seed: bytes, public: bytes, purpose: str) -> bytes:
    """The key that the owner of the seed has with the owner of a public key, for one purpose."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    return derived(_private(seed).exchange(X25519PublicKey.from_public_bytes(public)), purpose)


def stream(key: bytes, words: int) -> np.ndarray:
    """So many words of 64 bits that look random to anybody without the key."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    bits = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * words))
    return np.frombuffer(bits, dtype="<u8")


def sealed(key: bytes, text: bytes, about: str, number: int = 0) -> bytes:
    """Encrypt a text. A key may be used once for each number.

    Args:
        key: 32 bytes.
        text: what is encrypted.
        about: what the text is bound to; `opened` must get the same.
        number: makes the nonce.
    """
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return ChaCha20Poly1305(key).encrypt(number.to_bytes(12, "little"), text, about.encode())


def opened(key: bytes, text: bytes, about: str, number: int = 0) -> bytes:
    """Decrypt what `sealed` made.

    Raises:
        ValueError: the text was changed, or is meant for somebody else.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(key).decrypt(number.to_bytes(12, "little"), text, about.encode())
    except InvalidTag:
        raise ValueError(
            f"a sealed text about {about!r} cannot be opened: it was changed, or is not for here"
        ) from None


def split(secret: bytes, threshold: int, count: int, key: bytes) -> list[bytes]:
    """Split 16 bytes into shares, of which `threshold` give them back and fewer reveal nothing.

    A step that is repeated, since a worker or a node of a cluster was lost, must give the shares that others may hold
    already. So the polynomial follows from a key, which only the owner of the secret knows, and not from chance.

    Args:
        secret: 16 bytes.
        threshold: how many shares give it back.
        count: how many shares there are.
        key: 32 bytes, for this secret, threshold and count only.
    """
    drawn = stream(key, 2 * (threshold - 1)).tobytes()
    factors = [drawn[at : at + SEED] for at in range(0, len(drawn), SEED)] + [secret]
    shares = []
    for number in range(1, count + 1):
        share = 0
        for factor in factors:  # Horner's rule; the secret is the value at zero
            share = _product(share, number) ^ int.from_bytes(factor, "big")
        shares.append(share.to_bytes(SEED, "big"))
    return shares


def _product(one: int, other: int) -> int:
    """Of two elements of GF(2^128)."""
    result = 0
    while other:
        if other & 1:
            result ^= one
        one, other = one << 1, other >> 1
        if one >> 128:
            one ^= FIELD
    return result


def joined(shares: Mapping[int, bytes]) -> bytes:
    """The secret, out of shares by number; the first share has number 1."""
    from Crypto.Protocol.SecretSharing import Shamir

    return bytes(Shamir.combine(list(shares.items()), False))
