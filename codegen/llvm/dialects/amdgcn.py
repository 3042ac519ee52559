"""AMD's graphics processors: vector instructions work on all lanes of a wavefront, scalar ones on values that the
lanes share."""

import re

from .dialect import AsmDialect, first_match

_class_of = first_match(
    (
        ("matrix", r"v_s?mfma\w+"),
        ("call", r"s_(swappc|setpc|getpc|call)\w*"),
        ("branch", r"s_(c?branch\w*|endpgm)"),
        ("vector_load", r"(global|flat|buffer|scratch)_load_\w+|ds_read\w*|ds_load\w*"),
        ("vector_store", r"(global|flat|buffer|scratch)_store_\w+|ds_write\w*|ds_store\w*"),
        ("scalar_load_store", r"s_(load|buffer_load|store)\w*"),
        ("shuffle", r"ds_(bpermute|permute|swizzle)\w*|v_(perm|alignbit|alignbyte|permlane)\w*|v_mov_b32_dpp|"
         r"v_(read|write)(first)?lane\w*|v_cndmask\w*"),
        ("vector_fma", r"v_(pk_)?(fma|fmac|mad|mac|fmaak|fmamk|div_fmas)_(f\w+|mix\w*)|v_fma_mix\w*|v_dot\d\w*"),
        ("convert", r"v_cvt\w*"),
        ("vector_arithmetic", r"v_(pk_)?(add|sub|subrev|mul|min|max|min3|max3|med3|rcp|rsq|sqrt|exp|log|ldexp|rndne|"
         r"trunc|floor|ceil|fract|frexp\w*|div_scale|div_fixup|cmpx?_\w+)_(legacy_)?f(16|32|64)\w*"),
        ("vector_integer", r"v_(pk_)?(addc?|subb?|subrev|mul|mad|lsh[lr]?\w*|ash\w*|and|or3?|xor|not|bf\w+|min|max|"
         r"cmpx?_\w+|mbcnt|ffb\w*|add3|add_lshl|xad|bcnt|sad)\w*_(co_)?[iub](16|24|32|64)?\w*"),
        ("integer", r"s_(addc?|subb?|mul|lsh\w*|ash\w*|and|or|xor|xnor|nand|nor|not|mov|cmov|cmp|cselect|bf\w+|min|max|"
         r"ff1|flbit|bitcmp|bitset|brev|bcnt|abs|sext|pack|wqm|quadmask)\w*"),
    )
)  # fmt: skip


def classify(mnemonic: str, operands: str) -> str:
    """Return the class of one instruction; accesses of shared memory count as loads and stores, too."""
    return _class_of(re.sub(r"_(e32|e64|sdwa)$", "", mnemonic))


AMDGCN = AsmDialect(classify, ";", re.compile(r"\bexec\b"))
"""The register ``exec`` masks the lanes, so instructions that name it count as masked."""
