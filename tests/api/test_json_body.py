"""Bodies are JSON in the strict sense, and what is refused is named."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.api.json_body import BadBody, parse_json
from tilewright.api.limits import MAX_JSON_DEPTH

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=30,
)


@settings(max_examples=200, deadline=None)
@given(VALUES, st.booleans())
def test_every_legal_value_comes_back(value: object, escaped: bool) -> None:
    assert parse_json(json.dumps(value, ensure_ascii=escaped).encode()) == value


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_refused(body: bytes) -> None:
    try:
        parse_json(body)
    except BadBody as error:
        assert error.status_code == 400 and error.detail


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b"", "INVALID_JSON", "character 0"),
        (b"{", "INVALID_JSON", "character"),
        (b"[NaN]", "INVALID_JSON", "NaN"),
        (b"[-Infinity]", "INVALID_JSON", "-Infinity"),
        (b"[1e999]", "INVALID_JSON", "1e999"),
        (b"[" + b"9" * 5000 + b"]", "INVALID_JSON", "5000 digits"),
        (b'{"a":1,"a":2}', "INVALID_JSON", "'a'"),
        (b"\xff\xfe", "INVALID_JSON", ""),
        (b'{"a":"\xff"}', "INVALID_JSON", "UTF-8"),
        (b'{"a":["\\u0000"]}', "INVALID_TEXT", "NUL"),
        (b'{"a":["\\ud800"]}', "INVALID_TEXT", "surrogate"),
        (b"[" * 100_000, "JSON_TOO_DEEP", "100000"),
        (b'{"a":' * (MAX_JSON_DEPTH + 1) + b"1" + b"}" * (MAX_JSON_DEPTH + 1), "JSON_TOO_DEEP", str(MAX_JSON_DEPTH)),
    ],
)
def test_what_is_refused(body: bytes, code: str, words: str) -> None:
    with pytest.raises(BadBody) as refused:
        parse_json(body)
    assert refused.value.code == code
    assert words in str(refused.value.detail)


@pytest.mark.parametrize("bad", [b'"\\u0000"', b"NaN", b"1e999", b"9" * 50, b'{"x":1,"x":1}', b"[" * 400 + b"]" * 400])
def test_where_it_stands_is_named(bad: bytes) -> None:
    with pytest.raises(BadBody) as refused:
        parse_json(b'{"a":[1,{"b/~":' + bad + b"}]}")
    assert refused.value.field.startswith("/a/1/b~1~0")


def test_brackets_in_strings_do_not_count_as_depth() -> None:
    assert parse_json(b'["' + b"[" * 5000 + b'\\"[[["]') == ["[" * 5000 + '"[[[']
