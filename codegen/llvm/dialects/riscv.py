"""RISC-V: the vector extension has mnemonics of its own."""

import re

from .dialect import AsmDialect, first_match

_class_of = first_match(
    (
        ("call", r"call|tail|jalr?"),
        ("branch", r"b(eq|ne|lt|le|gt|ge)(u|z)?|j|jr|ret"),
        ("gather", r"vl([uo]xei|se|[uo]xseg|sseg)\w*\.v"),
        ("scatter", r"vs([uo]xei|se|[uo]xseg|sseg\d)\w*\.v"),
        ("vector_load", r"vle\d+(ff)?\.v|vl\d+r\w*\.v|vlm\.v|vlseg\w+\.v"),
        ("vector_store", r"vse\d+\.v|vs\d+r\.v|vsm\.v|vsseg\w+\.v"),
        ("vector_fma", r"vfw?n?m(acc|add|sac|sub)\w*\.v[vf]|vqdot\w*\.v[vx]"),
        ("scalar_fma", r"fn?m(add|sub)\.[hsd]"),
        ("broadcast", r"vf?mv\.v\.[xf]"),
        ("convert", r"vf[nw]?cvt\w*\..+|v[sz]ext\..+|vnclipu?\..+|vnsr[la]\..+|fcvt\..+"),
        ("shuffle", r"vrgather\w*\..+|vf?slide\w+\..+|vf?merge\..+|vcompress\..+|vmv\.(x\.s|s\.x)|vfmv\.(f\.s|s\.f)"),
        ("vector_arithmetic", r"vf(w?(add|sub|mul)|rsub|r?div|sqrt|min|max|sgnj\w*|neg|abs|w?red\w+|rec7|rsqrt7|"
         r"class)\..+|vmf(eq|ne|lt|le|gt|ge)\..+"),
        ("scalar_fp", r"f(add|sub|mul|div|sqrt|min|max|sgnj\w*|neg|abs|eq|lt|le|round\w*|class)m?\.[hsd]"),
        ("vector_integer", r"v([wn]?(add|sub|mul|macc)\w*|rsub|n?ms(ac|ub)|"
         r"madd|divu?|remu?|minu?|maxu?|and|or|xor|not|neg|"
         r"s(ll|rl|ra)|red\w+|ms(eq|ne|lt|le|gt|ge)u?|m(n?and|n?or|xn?or|not)n?|id|iota|cpop|first)\..+"),
        ("scalar_load_store", r"l[bhwd]u?|s[bhwd]|f[ls][hwd]"),
        ("integer", r"(add|sub|mul|div|rem|sll|srl|sra|neg|sext|zext|and|or|xor|slt|min|max)\w*(\.[bhw])?|mulh\w*|not|"
         r"mv|li|lui|auipc|la|lla|s(eq|ne|lt|gt)z|sh[123]add(\.uw)?|csrr|clzw?|ctzw?|[ao]nd?n|xnor|"
         r"ror\w*|rol\w*|b(set|clr|ext)i?"),
    )
)  # fmt: skip


def classify(mnemonic: str, operands: str) -> str:
    """Return the class of one instruction; a strided load or store counts as gather or scatter."""
    return _class_of(mnemonic)


RISCV = AsmDialect(classify, "#", re.compile(r"\bv0\.t\b"))
