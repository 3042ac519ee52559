"""The key pair that releases are signed with (Ed25519, RFC 8032). The service keeps the private key in a file; whoever
has the public one checks releases and can sign none."""

import hashlib
import os
import re
from pathlib import Path
from typing import Any

from ..core.errors import InvalidParameter

SIGNATURE_BYTES = 64
PUBLIC_KEY = re.compile(r"[0-9a-f]{64}")


def key_id(public_key: str) -> str:
    """Return a short name of a public key."""
    return hashlib.sha256(bytes.fromhex(public_key)).hexdigest()[:16]


def checked_public_key(text: str) -> str:
    """Return ``text`` if it is a public key. Raises InvalidParameter."""
    if not PUBLIC_KEY.fullmatch(text):
        raise InvalidParameter("a public key has 64 hexadecimal digits", field="release_public_key")
    return text


def is_signed(message: bytes, signature: bytes, public_key: str) -> bool:
    """Return whether ``message`` was signed with the key of ``public_key``. Raises InvalidParameter."""
    key = _ed25519().Ed25519PublicKey.from_public_bytes(bytes.fromhex(checked_public_key(public_key)))
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, message)
    except InvalidSignature:
        return False
    return True


class SigningKey:
    """Signs with a key pair. ``public_key`` has 64 hexadecimal digits."""

    def __init__(self, private_key: Any) -> None:
        self._private_key = private_key
        self.public_key: str = private_key.public_key().public_bytes_raw().hex()

    @classmethod
    def generate(cls) -> "SigningKey":
        """Return a new pair."""
        return cls(_ed25519().Ed25519PrivateKey.generate())

    @classmethod
    def kept_in(cls, path: Path) -> "SigningKey":
        """Return the pair whose private key is in a file (PKCS #8, PEM), which is made where it is missing. Raises
        InvalidParameter for a file that cannot be read, or holds something else."""
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            if not path.exists():
                cls._make(path)
            key = load_pem_private_key(path.read_bytes(), None)
        except OSError as error:
            why = f"cannot use {path}: {error.strerror}"
            raise InvalidParameter(f"no key to sign releases with: {why}", field="release_key_file") from error
        except (ValueError, TypeError) as error:
            why = f"{path} holds no private key in PEM"
            raise InvalidParameter(f"no key to sign releases with: {why}", field="release_key_file") from error
        if not isinstance(key, _ed25519().Ed25519PrivateKey):
            raise InvalidParameter(f"{path} holds no Ed25519 key", field="release_key_file")
        return cls(key)

    @classmethod
    def _make(cls, path: Path) -> None:
        """Write a new key, for this user alone. Of processes that do so at once, the first one wins."""
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        made = cls.generate()._private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        aside = path.with_name(f"{path.name}.{os.getpid()}")
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(made)
        try:
            os.link(aside, path)
        except FileExistsError:
            pass
        finally:
            aside.unlink()

    def sign(self, message: bytes) -> bytes:
        """Return the signature of ``message``, which has 64 bytes."""
        signature: bytes = self._private_key.sign(message)
        return signature


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ModuleNotFoundError as error:
        raise InvalidParameter(
            "Ed25519 needs the package cryptography: pip install cryptography", field="release_public_key"
        ) from error
    return ed25519
