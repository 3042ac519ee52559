"""Makes identifiers of C and C++."""

KEYWORDS = frozenset(
    """alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const constexpr
    const_cast continue co_await co_return co_yield decltype default delete do double dynamic_cast else enum explicit
    export extern false float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr
    operator or or_eq private protected public register reinterpret_cast requires restrict return short signed sizeof
    static static_assert static_cast struct switch template this thread_local throw true try typedef typeid typename
    union unsigned using virtual void volatile wchar_t while xor xor_eq""".split()
)
"""These words are no identifiers."""


def ascii_name(name: str) -> str:
    """Return ``name`` with every character replaced that an identifier must not have."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
    return f"v{plain}" if not plain or plain[0].isdigit() else plain
