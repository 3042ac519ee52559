"""The instruction sets that code is made for: what LLVM is told of each, and what each extension adds."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...core.errors import UnsupportedTarget
from ...core.target import Target

CROSS_COMPILED_THREADS = 8
"""Code for a machine that is not here is made for so many threads. It is the size of a small server."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """One row of ``ARCHITECTURES``.

    ``triple`` stands for position-independent ELF objects for Linux. ``cpu`` is a neutral name. The name that a host
    reports is never used: under a hypervisor it is often wrong, and it would tie the object code to scheduling tables
    that nobody chose. ``abi`` is LLVM's name for it; it is empty where there is only one. ``baseline`` lists extensions
    that every useful machine has; they are added to each target's. ``extensions`` maps those that a named target may
    ask for to the bytes of a vector register with it; 0 means that the extension does not change that.
    ``float16_extensions`` lists extensions any of which converts float16; it is empty where all machines do.
    ``scalable`` lists extensions whose vectors have no fixed length: LLVM must be told a length. ``vector_bytes`` holds
    without any extension. ``futex_syscall`` is the number of that system call on Linux. ``pause`` is the intrinsic that
    a spinning thread calls.
    """

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
        vector_bytes=8,  # It has no vectors, so this is one double.
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
"""This maps each architecture to how code for it is made. ``sve`` means registers of at least 32 bytes, as the
servers with it have; ``v`` means at least 16 bytes, and ``zvlNb`` at least N bits."""


def architecture_of(target: Target) -> Architecture:
    """Return the row of the target's architecture. Raises UnsupportedTarget where ``ARCHITECTURES`` has none."""
    if target.arch not in ARCHITECTURES:
        raise UnsupportedTarget(
            f"llvm has no architecture {target.arch!r} here; known: {', '.join(ARCHITECTURES)}", field="arch"
        )
    return ARCHITECTURES[target.arch]


def target_named(text: str) -> Target:
    """Return the target that a text such as ``aarch64+sve`` or ``riscv64+v+zvl256b`` names. No such machine need be
    here. Raises UnsupportedTarget for an unknown architecture or extension."""
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
    """Return the attributes that every function of a module carries. For scalable vectors LLVM must be told their
    least length, or it uses the short vectors of fixed length."""
    scalable = architecture_of(target).scalable
    if target.vector_bytes > 16 and any(name in scalable for name in target.features):
        return f"nounwind vscale_range({target.vector_bytes // 16},16)"
    return "nounwind"
