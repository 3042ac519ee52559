"""Counts SASS instructions by class, which shows whether accesses are wide and which units work."""

import re
from collections import Counter

CLASSES = (
    "global_load_128",
    "global_load_64",
    "global_load_narrow",
    "global_store_128",
    "global_store_64",
    "global_store_narrow",
    "shared_load_128",
    "shared_load_narrow",
    "shared_store_128",
    "shared_store_narrow",
    "async_copy",
    "bulk_copy",
    "cluster_load",
    "local_memory",
    "matrix",
    "matrix_group",
    "matrix_tensor",
    "tensor_memory",
    "matrix_load",
    "fma_f32",
    "arithmetic_f32",
    "arithmetic_f64",
    "arithmetic_f16",
    "special_function",
    "convert",
    "integer",
    "shuffle",
    "barrier",
    "predicate",
    "branch",
    "move",
    "other",
)
"""These are all classes, in the order in which they are shown. ``local_memory`` is what spills and arrays on the stack
cost. ``matrix_group`` is ``wgmma`` of warpgroups (HGMMA), ``matrix`` is ``mma.sync`` of warps (HMMA), and
``matrix_tensor`` is ``tcgen05.mma`` (UTCHMMA). ``tensor_memory`` is what else touches tensor memory."""

_RULES: tuple[tuple[str, str], ...] = (
    ("async_copy", r"LDGSTS|LDGDEPBAR|DEPBAR"),
    ("bulk_copy", r"UBLKCP|UTMA\w+"),
    ("local_memory", r"LDL|STL"),
    ("matrix_load", r"LDSM|MOVM|STSM"),
    ("matrix_group", r"HGMMA|QGMMA|IGMMA"),
    ("matrix_tensor", r"UTC[HIQO]MMA"),
    ("tensor_memory", r"LDTM|STTM|UTCCP|UTCBAR|UTCATOMSWS"),
    ("matrix", r"HMMA|IMMA|DMMA"),
    ("fma_f32", r"FFMA2?"),
    ("arithmetic_f32", r"F(ADD|MUL|MNMX|MNMX3|SEL|SETP|SET|CHK|RND|SWZADD|ADD2|MUL2)\d?"),
    ("arithmetic_f64", r"D(ADD|MUL|FMA|SETP|MNMX)"),
    ("arithmetic_f16", r"H(ADD2|MUL2|FMA2|MNMX2|SETP2|SET2)"),
    ("special_function", r"MUFU"),
    ("convert", r"F2F|F2FP|F2I|I2F|I2FP|I2I|FRND|F2IP"),
    ("shuffle", r"SHFL|REDUX|CREDUX"),
    ("barrier", r"BAR|WARPGROUP\w*|WARPSYNC|SYNCS|UCGABAR\w*|CGAERRBAR|CCTL|ELECT|MEMBAR|ERRBAR|FENCE|B2R|R2B"),
    ("branch", r"BRA|BRX|EXIT|RET|CALL|BSSY|BSYNC|JMP|NANOSLEEP|YIELD|BREAK|WARPSYNC"),
    ("predicate", r"U?PLOP3|P2R|R2P|VOTEU?|U?ISETP"),
    ("integer", r"U?(IADD3?|IMAD|IMUL|LEA|LOP3|SHF|SHL|SHR|IABS|IMNMX|VIMNMX\d?|VIADD|VIADDMNMX|SEL|POPC|FLO|BREV|BMSK"
     r"|SGXT|PRMT|ISCADD|VABSDIFF|I2IP)|IDP|LEPC"),
    ("move", r"U?MOV|S2U?R|CS2U?R|R2UR|LDC|ULDC|LDCU|UMOV|MOVM"),
)  # fmt: skip
_COMPILED = tuple((name, re.compile(rf"({pattern})$")) for name, pattern in _RULES)
_MEMORY = {"LDG": "global_load", "STG": "global_store", "LDS": "shared_load", "STS": "shared_store"}
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)")
_FUNCTION = re.compile(r"^\.text\.(\w+):")


def count_instructions(sass: str) -> dict[str, int]:
    """Return class -> how many instructions of the disassembly ``sass`` fall into it, for every class of
    ``CLASSES``."""
    counts: Counter[str] = Counter()
    for line in sass.splitlines():
        match = _INSTRUCTION.match(line)
        if match is not None and match.group(1) != "NOP":
            counts[classify(match.group(1))] += 1
    return {name: counts.get(name, 0) for name in CLASSES}


def classify(mnemonic: str) -> str:
    """Return the class of one instruction, such as ``LDG.E.128.CONSTANT``."""
    operation, *modifiers = mnemonic.split(".")
    if operation in _MEMORY:
        if operation.startswith("LDS") or operation.startswith("STS"):
            width = "128" if "128" in modifiers else "narrow"
        else:
            width = next((w for w in ("128", "64") if w in modifiers), "narrow")
        return f"{_MEMORY[operation]}_{width}"
    if operation == "LD":
        return "cluster_load"
    return next((name for name, pattern in _COMPILED if pattern.match(operation)), "other")
