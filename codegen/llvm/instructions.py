"""What the machine instructions of a kernel are, counted by class: whether vectors and fused operations are there."""

import re
from collections import Counter
from collections.abc import Mapping

CLASSES = (
    "vector_fma",
    "vector_arithmetic",
    "vector_integer",
    "vector_load",
    "vector_store",
    "broadcast",
    "gather",
    "scatter",
    "masked",
    "shuffle",
    "convert",
    "matrix",
    "scalar_fma",
    "scalar_fp",
    "scalar_load_store",
    "integer",
    "branch",
    "call",
    "other",
)
"""Every class, in the order in which it is shown. ``masked`` counts vector instructions under a mask beside their own
class, so it is no part of the sum."""

_RULES: tuple[tuple[str, str], ...] = (
    ("call", r"callq?"),
    ("branch", r"j[a-z]+|retq?"),
    ("matrix", r"t(dp|ile|load|release|zero|stored)\w*|ldtilecfg|sttilecfg"),
    ("gather", r"vp?gather\w+"),
    ("scatter", r"vp?scatter\w+"),
    ("vector_fma", r"v(fn?m(add|sub)\w*p[sdh]|dpbf16ps|pdp\w+)"),
    ("scalar_fma", r"vfn?m(add|sub)\w*s[sdh]"),
    ("broadcast", r"v(p?broadcast\w+|movddup)"),
    ("convert", r"v?cvt\w+|vpmov[sz]x\w+|vpmov(us|s)?[dqw][bwd]"),
    ("shuffle", r"v?(p?shuf\w+|perm\w+|pperm\w+|p?unpck\w+|pblend\w*|blend\w+|p?insert\w+|p?extract\w+|p?align\w+)"),
    ("vector_arithmetic", r"v?(add|sub|mul|div|min|max|sqrt|rsqrt14|rcp14|rndscale|round|scalef|getexp|cmp\w*|range|"
     r"h?addsub|hadd)p[sdh]"),
    ("scalar_fp", r"v?((add|sub|mul|div|min|max|sqrt|rndscale|round|scalef|cmp\w*|getexp)s[sdh]|u?comis[sdh])"),
    ("vector_integer", r"v?(and|andn|or|xor)p[sd]|"
     r"v?p(add|sub|mul|min|max|abs|cmp|and|or|xor|s[lr]l|sra|ternlog|test|avg|madd|sign)\w*"),
    ("integer", r"(add|sub|imul|mul|i?div|neg|inc|dec|and|or|xor|not|s[ahlr]{2}[lx]?|lea|cmp|test|cmov\w+|set\w+|"
     r"mov[sz]\w+|bt|bextr|rorx|c[dq]q|andn|bsf|tzcnt|lzcnt)[bwlq]?|cqto|cltd|cltq|movabsq"),
)  # fmt: skip
_MOVES = re.compile(r"v?(mov(u|a|nt)p[sd]|movdq\w+|lddqu)$")
_SCALAR_MOVES = re.compile(r"(v?movs[sdh]|v?mov[dqw]|mov[bwlq])$")
_COMPILED = tuple((name, re.compile(rf"({pattern})$")) for name, pattern in _RULES)
_INSTRUCTION = re.compile(r"^\s+([a-z][a-z0-9.]*)\b\s*([^#]*)")
_MASK = re.compile(r"\{%k\d\}")


def count_instructions(assembly: str) -> dict[str, int]:
    """Class -> how many instructions of AT&T-syntax ``assembly`` fall into it; every class of ``CLASSES`` is there."""
    counts: Counter[str] = Counter()
    for line in assembly.splitlines():
        match = _INSTRUCTION.match(line)
        if match is None or match.group(1).startswith("."):
            continue
        mnemonic, operands = match.group(1), match.group(2).strip()
        counts[classify(mnemonic, operands)] += 1
        if _MASK.search(operands):
            counts["masked"] += 1
    return {name: counts.get(name, 0) for name in CLASSES}


def classify(mnemonic: str, operands: str) -> str:
    """The class of one instruction. An arithmetic instruction with a memory operand counts as arithmetic."""
    if _MOVES.match(mnemonic):
        if "(" not in operands:
            return "other"
        return "vector_store" if operands.rstrip().endswith(")") or _store_under_mask(operands) else "vector_load"
    if _SCALAR_MOVES.match(mnemonic):
        return "scalar_load_store" if "(" in operands else "integer"
    for name, pattern in _COMPILED:
        if pattern.match(mnemonic):
            return name
    return "other"


def total(counts: Mapping[str, int]) -> int:
    """How many instructions there are in all."""
    return sum(number for name, number in counts.items() if name != "masked")


def _store_under_mask(operands: str) -> bool:
    return re.search(r"\)\s*\{%k\d\}$", operands.rstrip()) is not None
