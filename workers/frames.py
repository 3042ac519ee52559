"""What parent and child say to each other: a JSON header and byte blobs in one length-prefixed message.

No pickle: a child that ran a broken kernel may send rubbish, and rubbish must end in an error, not in code.
"""

import json
import struct
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from ..core.errors import WorkerLost

_LENGTH = struct.Struct("<Q")
_MOST_BLOBS = 64
_MOST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Frame:
    """``header``: JSON data, never None inside; ``blobs``: bytes that JSON cannot carry (machine code)."""

    header: dict[str, object] = field(default_factory=dict)
    blobs: tuple[bytes, ...] = ()


def pack(frame: Frame) -> bytes:
    """Return a frame as one message. Raises ValueError for NaN or infinities in the header."""
    text = json.dumps(frame.header, allow_nan=False).encode()
    parts = [_LENGTH.pack(len(frame.blobs))]
    for part in (text, *frame.blobs):
        parts += [_LENGTH.pack(len(part)), part]
    return b"".join(parts)


def send(connection: Connection, frame: Frame) -> None:
    """Raises OSError when the other side is gone, and what ``pack`` raises."""
    connection.send_bytes(pack(frame))


def receive(connection: Connection) -> Frame:
    """Raises EOFError or OSError when the other side is gone or says too much, and what ``unpack`` raises."""
    return unpack(connection.recv_bytes(_MOST_BYTES))


def unpack(data: bytes) -> Frame:
    """Return the frame of a message. Raises WorkerLost for one that is none."""
    try:
        (blobs,) = _LENGTH.unpack_from(data)
        if blobs > _MOST_BLOBS:
            raise ValueError(f"{blobs} blobs")
        offset, parts = _LENGTH.size, []
        for _ in range(blobs + 1):
            (length,) = _LENGTH.unpack_from(data, offset)
            offset += _LENGTH.size
            if offset + length > len(data):
                raise ValueError("a part runs past the end of the message")
            parts.append(data[offset : offset + length])
            offset += length
        header = json.loads(parts[0])
    except (struct.error, ValueError) as error:
        raise WorkerLost(f"a child sent a broken message of {len(data)} bytes: {error}") from error
    if not isinstance(header, dict):
        raise WorkerLost(f"a child sent a {type(header).__name__} where an object belongs")
    return Frame(header, tuple(parts[1:]))
