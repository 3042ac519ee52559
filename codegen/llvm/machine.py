"""LLVM's target machines, each made from a neutral CPU name and an explicit list of features (see
``architectures``)."""

import llvmlite.binding as llvm

from ...core.target import Target
from .architectures import architecture_of

OPTIMISATION_LEVEL = 3

llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()


def triple_of(target: Target) -> str:
    """Return LLVM's triple. Raises UnsupportedTarget for an unknown architecture."""
    return architecture_of(target).triple


def feature_string(target: Target) -> str:
    """Return the features as LLVM takes them: ``+avx2,+fma``."""
    return ",".join(f"+{feature}" for feature in target.features)


def create_machine(target: Target) -> llvm.TargetMachine:
    """Make a new target machine, because threads must not share one."""
    architecture = architecture_of(target)
    return llvm.Target.from_triple(architecture.triple).create_target_machine(
        cpu=architecture.cpu,
        features=feature_string(target),
        opt=OPTIMISATION_LEVEL,
        reloc="pic",
        codemodel="small",
        abiname=architecture.abi,
    )
