"""AArch64: NEON and SVE share mnemonics with scalar code, and the operands tell them apart."""

import re

from .dialect import AsmDialect, first_match

_VECTOR = re.compile(r"\b[vz]\d+(\.|\b)|\bq\d+\b")
_LANE = re.compile(r"\[\d+\]$")
"""Matches a load or store of one lane."""
_SPREAD = re.compile(r"\[[^\]]*\bz\d+\.")
"""Matches an address in every lane."""
_BROADCAST_MOVE = re.compile(r"z\d+\.[bhsd], [whsdbx]\d+$")
_LANE_MOVE = re.compile(r"v\d+\.\w\[\d+\]")

_vector_class = first_match(
    (
        ("matrix", r"(bf|s|u|us|f)mmla|\w*mop[as]"),
        ("vector_fma", r"fn?ml[as]\w*|fn?m(ad|sb)|bfmlal\w|bfdot|(s|u|us|su)dot"),
        ("broadcast", r"ld1r\w*|dup"),
        ("vector_load", r"ld[pru1-4]\w*|ldnp|ldnt1\w"),
        ("vector_store", r"st[pru1-4]\w*|stnp|stnt1\w"),
        ("convert", r"f?cvt\w*|fcvt\w*|bfcvt\w*|[su]cvtf|[us](shll|xtl)2?|shll2?|[us]unpk(lo|hi)|xtn2?|"
         r"[us]qxtu?n2?|shrn2?"),
        ("shuffle", r"ext|tb[lx]|(zip|uzp|trn)[12]|rev\w*|splice|compact|insr?|[us]mov|sel|bsl|bit|bif|last[ab]"),
        ("vector_arithmetic", r"f(add|subr?|mulx?|divr?|sqrt|abs|neg|min|max|rint|recp|rsqrt|scale|cm|ac|abd)\w*"),
        ("vector_integer", r"(add|sub|subr|mul|ml[as]|mad|msb|abs|neg|and|orr|eor|bic|not|mvn|cm\w+|ls[lr]|asr|shl|cnt|"
         r"index|(s|u)?(min|max|add|shr|sra|shl|mul|div|abd|rshr|hadd)\w*)[pv]?"),
    )
)  # fmt: skip
_scalar_class = first_match(
    (
        ("call", r"blr?"),
        ("branch", r"b|b\.\w+|br|cbn?z|tbn?z|ret"),
        ("scalar_load_store", r"ld[rpu]\w*|st[rpu]\w*|ldnp|stnp"),
        ("scalar_fma", r"fn?m(add|sub)"),
        ("convert", r"fcvt\w*|[su]cvtf"),
        ("scalar_fp", r"f(n?mul|add|sub|div|sqrt|abs|neg|min|max|rint|c?cmp|csel)\w*"),
        ("integer", r"(add|sub|mul|madd|msub|mneg|[us]mul[lh]|[us]m(add|sub)l|[us]div|neg|and|orr|orn|eor|eon|bic|mvn|"
         r"ls[lr]|asr|ror|extr|cmp|cmn|ccm[pn]|tst|cs\w+|cinc|cneg|cinv|mov[knz]?|adrp?|[us]?bf\w+|[us]xt[bhw]|clz|rbit|"
         r"rev\w*|addvl|rdvl|(cnt|inc|dec)[bhwd])s?"),
    )
)  # fmt: skip


def classify(mnemonic: str, operands: str) -> str:
    """Return the class of one instruction. A load or store of one lane counts as scalar, a move of one lane as a
    shuffle."""
    if not _VECTOR.search(operands):
        return _scalar_class(mnemonic)
    if mnemonic == "mov":
        if _BROADCAST_MOVE.match(operands):
            return "broadcast"
        return "shuffle" if _LANE_MOVE.search(operands) or "/m" in operands else "other"
    found = _vector_class(mnemonic)
    if found in ("vector_load", "vector_store"):
        if _LANE.search(operands.split("}")[-1].split(",")[0]):
            return "scalar_load_store"
        if _SPREAD.search(operands):
            return "gather" if found == "vector_load" else "scatter"
    return found


AARCH64 = AsmDialect(classify, "//", re.compile(r"\bp\d+(/[mz]\b|, [z\[])"))
"""Nearly all of SVE takes a predicate, even if it is all true, so ``masked`` shows how much of the code is SVE."""
