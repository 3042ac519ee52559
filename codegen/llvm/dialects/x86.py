"""x86-64 in AT&T syntax."""

import re

from .dialect import AsmDialect, first_match

_class_of = first_match(
    (
        ("call", r"callq?"),
        ("branch", r"j[a-z]+|retq?"),
        ("matrix", r"t(dp|ile|load|release|zero|stored)\w*|ldtilecfg|sttilecfg"),
        ("gather", r"vp?gather\w+"),
        ("scatter", r"vp?scatter\w+"),
        ("vector_fma", r"v(fn?m(add|sub)\w*p[sdh]|dpbf16ps|pdp\w+)"),
        ("scalar_fma", r"vfn?m(add|sub)\w*s[sdh]"),
        ("broadcast", r"v(p?broadcast\w+|movddup)"),
        ("convert", r"v?cvt\w+|vpmov[sz]x\w+|vpmov(us|s)?[dqw][bwd]"),
        ("shuffle", r"v?(p?shuf\w+|perm\w+|pperm\w+|p?unpck\w+|pblend\w*|blend\w+|"
         r"p?insert\w+|p?extract\w+|p?align\w+)"),
        ("vector_arithmetic", r"v?(add|sub|mul|div|min|max|sqrt|rsqrt14|rcp14|rndscale|round|scalef|getexp|cmp\w*|"
         r"range|h?addsub|hadd)p[sdh]"),
        ("scalar_fp", r"v?((add|sub|mul|div|min|max|sqrt|rndscale|round|scalef|cmp\w*|getexp)s[sdh]|u?comis[sdh])"),
        ("vector_integer", r"v?(and|andn|or|xor)p[sd]|"
         r"v?p(add|sub|mul|min|max|abs|cmp|and|or|xor|s[lr]l|sra|ternlog|test|avg|madd|sign)\w*"),
        ("integer", r"((add|sub|imul|mul|i?div|neg|inc|dec|and|or|xor|not|s[ahlr]{2}[lx]?|lea|cmp|test|cmov\w+|set\w+|"
         r"mov[sz]\w+|bt|bextr|rorx|c[dq]q|andn|bsf|tzcnt|lzcnt)[bwlq]?|cqto|cltd|cltq|movabsq)"),
    )
)  # fmt: skip
_MOVES = re.compile(r"v?(mov(u|a|nt)p[sd]|movdq\w+|lddqu)$")
_SCALAR_MOVES = re.compile(r"(v?movs[sdh]|v?mov[dqw]|mov[bwlq])$")


def classify(mnemonic: str, operands: str) -> str:
    """Return the class of one instruction. An arithmetic instruction with a memory operand counts as arithmetic."""
    if _MOVES.match(mnemonic):
        if "(" not in operands:
            return "other"
        return "vector_store" if operands.rstrip().endswith(")") or _store_under_mask(operands) else "vector_load"
    if _SCALAR_MOVES.match(mnemonic):
        return "scalar_load_store" if "(" in operands else "integer"
    return _class_of(mnemonic)


def _store_under_mask(operands: str) -> bool:
    return re.search(r"\)\s*\{%k\d\}$", operands.rstrip()) is not None


X86 = AsmDialect(classify, "#", re.compile(r"\{%k\d\}"))
