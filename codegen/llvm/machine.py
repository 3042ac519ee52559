"""Target machines: a neutral CPU name and an explicit list of features. The host's CPU name is never trusted:
under a hypervisor it is often wrong, and it would tie the object code to scheduling tables nobody chose."""

import llvmlite.binding as llvm

from ...core.errors import UnsupportedTarget
from ...core.target import Target

TRIPLES = {"x86-64": "x86_64-unknown-linux-gnu"}
"""Architecture -> LLVM triple. Position-independent ELF objects for Linux."""

OPTIMISATION_LEVEL = 3

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()


def triple_of(target: Target) -> str:
    """Raises UnsupportedTarget for an architecture without a row in ``TRIPLES``."""
    if target.arch not in TRIPLES:
        raise UnsupportedTarget(
            f"llvm has no architecture {target.arch!r} here; known: {', '.join(TRIPLES)}", field="arch"
        )
    return TRIPLES[target.arch]


def feature_string(target: Target) -> str:
    """``+avx2,+fma``: as LLVM takes it."""
    return ",".join(f"+{feature}" for feature in target.features)


def create_machine(target: Target) -> llvm.TargetMachine:
    """A fresh machine: LLVM's are not to be shared between threads."""
    return llvm.Target.from_triple(triple_of(target)).create_target_machine(
        cpu="x86-64", features=feature_string(target), opt=OPTIMISATION_LEVEL, reloc="pic", codemodel="small"
    )
