"""Adds debug locations to LLVM IR, so that the assembly says which line of the IR each instruction comes from.

Every instruction on line n gets the location n. Passes keep locations, merge them, or drop them where two instructions
become one. Debug locations change no machine code; ``assembly_origins`` says nothing where they did.

Source: "Source Level Debugging with LLVM", llvm.org.
"""

import re
from collections.abc import Iterator

from ..line_origins import LineOrigins, transferred

_METADATA = re.compile(r"^!(\d+) =", re.MULTILINE)
_LOCATION = re.compile(r"^\s+\.loc\s+\d+\s+(\d+)")
_COMMENT = re.compile(r"\s*(?:#|//|;|@)\s.*$")
_HEAD = """!llvm.dbg.cu = !{{!{unit}}}
!llvm.module.flags = !{{!{flag}}}
!{file} = !DIFile(filename: "kernel.ll", directory: "/")
!{unit} = distinct !DICompileUnit(language: DW_LANG_C99, file: !{file}, isOptimized: true, runtimeVersion: 0, \
emissionKind: DebugDirectivesOnly)
!{flag} = !{{i32 2, !"Debug Info Version", i32 3}}
!{type} = !DISubroutineType(types: !{{}})
"""


def with_debug_lines(text: str) -> str:
    """Return LLVM IR with a location at every instruction: its line in ``text``."""
    first = 1 + max((int(n) for n in _METADATA.findall(text)), default=-1)
    file, unit, flag, type, function = range(first, first + 5)
    lines, metadata = [], [_HEAD.format(file=file, unit=unit, flag=flag, type=type)]
    last = function - 1
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("define "):
            last = function = last + 1
            line = f"{line.removesuffix(' {')} !dbg !{function} {{"
            metadata.append(
                f'!{function} = distinct !DISubprogram(name: "f{function}", scope: !{file}, file: !{file}, '
                f"line: {number}, type: !{type}, scopeLine: {number}, spFlags: DISPFlagDefinition, unit: !{unit})\n"
            )
        elif line.startswith("  "):
            last += 1
            line = f"{line}, !dbg !{last}"
            metadata.append(f"!{last} = !DILocation(line: {number}, scope: !{function})\n")
        lines.append(line)
    return "\n".join(lines) + "\n" + "".join(metadata)


def assembly_origins(plain: str, annotated: str) -> LineOrigins:
    """Return the lines of the IR that each line of the assembly ``plain`` comes from. ``annotated`` is the assembly of
    ``with_debug_lines``."""
    return transferred("\n".join(map(_instruction, plain.splitlines())), _annotated(annotated))


def _annotated(assembly: str) -> Iterator[tuple[str, list[int]]]:
    here = 0
    for line in assembly.splitlines():
        location = _LOCATION.match(line)
        if location is not None:
            here = int(location.group(1))
            continue
        is_instruction = line[:1].isspace() and not line.lstrip().startswith(".")
        yield _instruction(line), [here] if is_instruction and here else []


def _instruction(line: str) -> str:
    """Return a line of assembly without its comment."""
    return _COMMENT.sub("", line).rstrip()
