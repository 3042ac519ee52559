"""Programs that call kernels of users on a GPU. As a command it tunes them through a service of its own, and compares
the configurations that the service serves with those that Triton's autotuner takes:

    PYTHONPATH=.typing python -m tilewright.tests.triton.gpu_programs
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import triton

from tilewright.api.app import create_app
from tilewright.api.client import Client
from tilewright.db.store import RecordStore
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.tests.api.serving import running
from tilewright.tests.triton import jitted
from tilewright.triton_backend import autotune

SOFTMAX_CONFIGS = [triton.Config({"ROWS": rows}, num_warps=warps) for rows in (1, 2, 4) for warps in (2, 4, 8)]
Decorator = Callable[..., Callable[[Any], Any]]


class Program:
    """One call of a kernel: ``call`` returns its result, and ``reference`` what torch makes of the same."""

    def __init__(self, name: str, decorate: Decorator, **options: Any) -> None:
        torch.manual_seed(0)
        make: dict[str, Callable[[], tuple[Any, list[Any], str, Callable[[], Any], Callable[[], Any]]]] = {
            "add": self._add,
            "matmul": self._matmul,
            "softmax": self._softmax,
        }
        kernel, configs, key, self._launch, self.reference = make[name]()
        self.tuner = decorate(configs=configs, key=key.split(), **options)(kernel)

    def call(self) -> Any:
        return self._launch()

    def error(self) -> float:
        """The largest error relative to the largest value."""
        want = self.reference().float()
        return float((self.call().float() - want).abs().max() / want.abs().max())

    def configuration(self) -> str:
        return str(self.tuner.best_config)

    def microseconds(self) -> float:
        return float(triton.testing.do_bench_cudagraph(self.call) * 1e3)

    def _add(self) -> Any:
        n = 1 << 24
        x, y = torch.randn(n, device="cuda"), torch.randn(n, device="cuda")
        out = torch.empty_like(x)

        def launch() -> Any:
            self.tuner[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n, ACTIVATION="leaky")
            return out

        return jitted.add, jitted.ADD_CONFIGS, "n", launch, lambda: torch.nn.functional.leaky_relu(x + y, 0.25)

    def _matmul(self) -> Any:
        m, n, k = 2048, 1024, 1536
        a = torch.randn((m, k), device="cuda", dtype=torch.float16)
        b = torch.randn((k, n), device="cuda", dtype=torch.float16)
        c = torch.empty((m, n), device="cuda", dtype=torch.float16)

        def grid(meta: dict[str, Any]) -> tuple[int]:
            return (triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]),)

        def launch() -> Any:
            self.tuner[grid](a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride())
            return c

        return jitted.matmul, jitted.MATMUL_CONFIGS, "M N K", launch, lambda: a @ b

    def _softmax(self) -> Any:
        rows, columns = 4095, 1000
        x = torch.randn((rows, columns), device="cuda")
        out = torch.empty_like(x)

        def launch() -> Any:
            self.tuner[lambda meta: (triton.cdiv(rows, meta["ROWS"]),)](out, x, rows, columns, WIDTH=1024)
            return out

        return jitted.softmax, SOFTMAX_CONFIGS, "rows columns", launch, lambda: torch.softmax(x, 1)


@contextmanager
def service(folder: str) -> Iterator[str]:
    """A service that accepts code and runs jobs on this machine; gives its address."""
    settings = Settings(database_url=f"sqlite:///{folder}/it.sqlite3", accept_code=True)
    with (
        Service(settings, RecordStore(settings.database_url)) as opened,
        running(create_app(opened, settings)) as address,
    ):
        yield address


def wait_for_jobs(address: str) -> list[str]:
    """Wait until every job has ended; return their states."""
    with Client(address) as client:
        jobs = [job.id for job in client.jobs()]
        for job in jobs:
            for _ in client.events(job):
                pass
        return [client.job(job).state for job in jobs]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, service(folder) as address:
        for name in ("add", "matmul", "softmax"):
            Program(name, autotune, service=address).call()
            states = wait_for_jobs(address)
            ours = Program(name, autotune, service=address)
            theirs = Program(name, triton.autotune)
            row: dict[str, Any] = {
                "kernel": name,
                "jobs": states,
                "error": ours.error(),
                "triton_error": theirs.error(),
            }
            row |= {"served": ours.configuration(), "triton": theirs.configuration()}
            row |= {"microseconds": ours.microseconds(), "triton_microseconds": theirs.microseconds()}
            json.dump(row, sys.stdout)
            print(flush=True)


if __name__ == "__main__":
    main()
