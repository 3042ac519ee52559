"""Sends HTTP requests over several connections that stay open, and says how long each took."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """Holds what came of a load: answers by status, and the seconds of each request, in order."""

    statuses: dict[int, int]
    seconds: tuple[float, ...]

    def quantile(self, share: float) -> float:
        """Return the time that this share of the requests stayed within."""
        return self.seconds[min(len(self.seconds) - 1, int(share * len(self.seconds)))]


def send(port: int, requests: Sequence[bytes], *, connections: int = 16, rate: float | None = None) -> Load:
    """Send whole requests to a port of this machine, and wait for all answers. With a ``rate`` the n-th request is due
    after n / rate seconds, and its time counts from then on, whether a connection was free or not."""
    return asyncio.run(_send(port, requests, connections, rate))


async def _send(port: int, requests: Sequence[bytes], connections: int, rate: float | None) -> Load:
    waiting = iter(enumerate(requests))
    statuses: dict[int, int] = {}
    seconds: list[float] = []
    started = time.perf_counter()

    async def work() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number, request in waiting:
            due = time.perf_counter() if rate is None else started + number / rate
            pause = due - time.perf_counter()
            if pause > 0:
                await asyncio.sleep(pause)
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length or 0))
            seconds.append(time.perf_counter() - due)
            status = int(head.split(b" ", 2)[1])
            statuses[status] = statuses.get(status, 0) + 1
        writer.close()

    await asyncio.gather(*(work() for _ in range(connections)))
    return Load(statuses, tuple(sorted(seconds)))


def get(path: str, token: str) -> bytes:
    """Return a GET request."""
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n".encode()


def post(path: str, body: bytes, token: str) -> bytes:
    """Return a POST request with a JSON body."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
