"""The instruction sets that code is made for: what LLVM is told of each, and what an extension brings."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...core.errors import UnsupportedTarget
from ...core.target import Target

CROSS_COMPILED_THREADS = 8
"""Native threads that code for a machine which is not here is made for: a small server of its kind."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """One row of ``ARCHITECTURES``. ``triple``: position-independent ELF objects for Linux. ``cpu``: a neutral name; a
    host's own is never trusted: under a hypervisor it is often wrong, and it would tie the object code to scheduling
    tables nobody chose. ``abi``: as LLVM names it, empty for the only one. ``baseline``: extensions that every machine
    worth the name has, added to each target's. ``extensions``: those a named target may ask for -> bytes of a
    vector register with it, 0 where they do not bear on that. ``half``: extensions any of which converts float16, empty
    where all machines do. ``scalable``: extensions whose vectors have a length that code for a fixed one must be told.
    ``vector_bytes``: without any extension. ``futex_syscall``: its number on Linux. ``pause``: the intrinsic for a
    thread that spins."""

    triple: str
    cpu: str
    vector_bytes: int
    extensions: Mapping[str, int] = field(default_factory=dict)
    baseline: tuple[str, ...] = ()
    float16_extensions: tuple[str, ...] = ()
    scalable: tuple[str, ...] = ()
    abi: str = ""
    futex_syscall: int = 98
    pause: str = "donothing()"


ARCHITECTURES: Mapping[str, Architecture] = {
    "x86-64": Architecture(
        triple="x86_64-unknown-linux-gnu",
        cpu="x86-64",
        vector_bytes=16,
        extensions={
            **dict.fromkeys(("sse4.2", "fma", "f16c"), 0),
            **dict.fromkeys(("avx", "avx2"), 32),
            **dict.fromkeys(
                ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512bf16", "avx512vnni"), 64
            ),
            **dict.fromkeys(("amx-tile", "amx-bf16", "amx-int8"), 0),
        },
        float16_extensions=("f16c", "avx512f"),
        futex_syscall=202,
        pause="x86.sse2.pause()",
    ),
    "aarch64": Architecture(
        triple="aarch64-unknown-linux-gnu",
        cpu="generic",
        vector_bytes=16,
        extensions={"dotprod": 0, "fullfp16": 0, "bf16": 0, "i8mm": 0, "sve": 32, "sve2": 32},
        scalable=("sve", "sve2"),
        pause="aarch64.hint(i32 1)",
    ),
    "riscv64": Architecture(
        triple="riscv64-unknown-linux-gnu",
        cpu="generic-rv64",
        vector_bytes=8,  # no vectors: one double
        extensions={
            **dict.fromkeys(("zba", "zbb", "zbs", "zfa", "zfhmin", "zfh"), 0),
            "v": 16,
            "zvfh": 16,
            "zvl256b": 32,
            "zvl512b": 64,
        },
        baseline=("a", "c", "d", "f", "m"),
        float16_extensions=("zfhmin", "zfh", "zvfh"),
        abi="lp64d",
    ),
}
"""Architecture -> how code for it is made. ``sve`` means registers of at least 32 bytes, as the servers with it have;
``v`` those of at least 16, ``zvlNb`` of at least N bits."""


def architecture_of(target: Target) -> Architecture:
    """Raises UnsupportedTarget for an architecture without a row in ``ARCHITECTURES``."""
    if target.arch not in ARCHITECTURES:
        raise UnsupportedTarget(
            f"llvm has no architecture {target.arch!r} here; known: {', '.join(ARCHITECTURES)}", field="arch"
        )
    return ARCHITECTURES[target.arch]


def target_named(text: str) -> Target:
    """``aarch64+sve``, ``riscv64+v+zvl256b``: a machine that need not be here. Raises UnsupportedTarget."""
    arch, *extensions = text.split("+")
    known = architecture_of(Target("llvm", arch[:80])).extensions
    unknown = [name for name in extensions if name not in known]
    if unknown:
        raise UnsupportedTarget(
            f"llvm:{arch} has no extension {unknown[0][:80]!r} here; known: {', '.join(sorted(known))}", field="target"
        )
    features = tuple(sorted({*ARCHITECTURES[arch].baseline, *extensions}))
    widest = max([ARCHITECTURES[arch].vector_bytes, *(known[name] for name in extensions)])
    return Target("llvm", arch, features, CROSS_COMPILED_THREADS, widest)


def function_attributes(target: Target) -> str:
    """What every function of a module carries. On machines with scalable vectors LLVM must be told how long they are
    at least, or it uses the short ones of fixed length."""
    scalable = architecture_of(target).scalable
    if target.vector_bytes > 16 and any(name in scalable for name in target.features):
        return f"nounwind vscale_range({target.vector_bytes // 16},16)"
    return "nounwind"
