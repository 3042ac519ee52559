"""Layers that ``tilewright explain`` is asked for: found by their title, empty, or unknown."""

import pytest
from rich.console import Console

from tilewright.api.responses import ExplanationOut, SectionOut
from tilewright.cli.explain import layers_named, linked, show_layer
from tilewright.core.errors import InvalidParameter

SECTIONS = (
    SectionOut(title="knobs", language="text", text=""),
    SectionOut(title="after simplify", language="ir", text="for i in range(4)"),
    SectionOut(title="after simplify vectors", language="ir", text="O[ramp(0, 4)] = 1.0"),
)
TOLD = ExplanationOut.model_construct(sections=SECTIONS)


def shown(section: SectionOut) -> str:
    console = Console(width=80)
    with console.capture() as captured:
        show_layer(console, section)
    return captured.get()


def test_layers_are_found_by_a_part_of_their_title() -> None:
    assert layers_named(TOLD, "SIMPLIFY") == SECTIONS[1:] and layers_named(TOLD, "vectors") == SECTIONS[2:]


def test_an_unknown_layer_is_refused_with_the_names_of_all() -> None:
    message = "no layer of this schedule has 'matrix' in its title; it has: knobs, after simplify, after simplify vect"
    with pytest.raises(InvalidParameter, match=message) as caught:
        layers_named(TOLD, "matrix")
    assert caught.value.field == "layer"


def test_an_empty_layer_says_so() -> None:
    assert "(this layer is empty)" in shown(SECTIONS[0])
    assert "for i in range(4)" in shown(SECTIONS[1]) and "empty" not in shown(SECTIONS[1])


def test_lines_say_which_lines_they_come_from() -> None:
    origins = ((), (2,), (1, 2, 3, 7))
    section = SectionOut(title="source", language="cuda-c++", text="a\nb\nc\n", above="after simplify", origins=origins)
    shown_as = linked(section)
    assert shown_as.text.splitlines() == ["1         | a", "2 < 2     | b", "3 < 1-3,7 | c"]
    assert shown_as.title == "source  (< lines of after simplify)"
    unlinked = linked(SectionOut(title="knobs", language="text", text="m = 1\nn = 2\n"))
    assert unlinked.text.splitlines() == ["1 | m = 1", "2 | n = 2"] and unlinked.title == "knobs"
