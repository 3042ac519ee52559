"""LLVM IR is written as text: a module of functions, each a list of blocks. Names that are given as hints stay
readable."""

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

from ..backend import Origin
from .values import LlvmValue, constant, integer_of, vector_type

CONTRACT = "nsz contract"
"""The flags of ordinary floating-point arithmetic: multiplications and additions may fuse, and the sign of zero is
free."""
EXACT = ""
"""No flags, so that every operation rounds by itself. Error-compensated code needs that."""


@lru_cache(maxsize=4096)
def identifier(name: str) -> str:
    """Return ``name`` with everything replaced that LLVM would want quoted."""
    clean = re.sub(r"[^A-Za-z0-9_.]", "_", name)
    return clean if clean and not clean[0].isdigit() else f"v{clean}"


@dataclass(frozen=True, slots=True)
class FunctionText:
    """The definition of a function, and what each of its lines was written for."""

    text: str
    origins: tuple[Origin | None, ...]


class ModuleWriter:
    """The functions and declarations of one module. ``origin`` is what is being written for at the moment: a statement,
    or the kernel."""

    def __init__(
        self,
        features: Collection[str] = (),
        *,
        attributes: str = "nounwind",
        float16_extensions: Sequence[str] = (),
        stack_address_space: int = 0,
    ) -> None:
        """``features`` lists the instruction-set extensions that code may use. ``attributes`` belong to every
        function. ``float16_extensions`` lists extensions of which float16 needs one; it is empty where float16 needs
        none. ``stack_address_space`` is the address space of a thread's stack."""
        self.features = frozenset(features)
        self.attributes = attributes
        self.float16_extensions = tuple(float16_extensions)
        self.stack_address_space = stack_address_space
        self.origin: Origin | None = None
        self._declarations: dict[str, Origin | None] = {}
        self._functions: dict[str, FunctionText | None] = {}

    def declare(self, declaration: str) -> None:
        self._declarations.setdefault(declaration, self.origin)

    def global_value(self, name: str, text: str) -> None:
        """Define the global ``@name = text``."""
        self.declare(f"@{name} = {text}")

    def define(self, name: str, text: FunctionText) -> None:
        self._functions[name] = text

    def defines(self, name: str) -> bool:
        return name in self._functions

    def reserve(self, name: str) -> None:
        """Reserve the position of a function that is written while others are being written."""
        self._functions.setdefault(name, None)

    def unique(self, name: str) -> str:
        """Return ``name``, with a number added where a function of this name exists."""
        candidate, number = name, 1
        while candidate in self._functions:
            candidate, number = f"{name}.{number}", number + 1
        self._functions[candidate] = None
        return candidate

    def text(self) -> str:
        declarations = ["\n".join(self._declarations)] if self._declarations else []
        return "\n\n".join([*(f.text for f in self._functions.values() if f), *declarations]) + "\n"

    def origins(self) -> list[Origin | None]:
        """Return what each line of ``text`` was written for."""
        found: list[Origin | None] = []
        for function in (f for f in self._functions.values() if f):
            found += [*function.origins, None]
        return found + list(self._declarations.values()) if self._declarations else found[:-1]


class FunctionWriter:
    """One function under construction: SSA names, blocks, and a method for each instruction that is used."""

    def __init__(self, module: ModuleWriter) -> None:
        self.module = module
        self._names: dict[str, int] = {"entry": 1}
        self._allocas: list[tuple[str, Origin | None]] = []
        self._lines: list[tuple[str, Origin | None]] = []
        self.block = "entry"

    # These methods deal with names and blocks.

    def name(self, hint: str) -> str:
        hint = identifier(hint)
        count = self._names.get(hint, 0)
        candidate = hint if count == 0 else f"{hint}.{count}"
        while candidate in self._names and count:
            count += 1
            candidate = f"{hint}.{count}"
        self._names[hint] = count + 1
        self._names.setdefault(candidate, 1)
        return f"%{candidate}"

    def label(self, hint: str) -> str:
        return self.name(hint)[1:]

    def begin_block(self, label: str) -> None:
        self._lines.append((f"{label}:", self.module.origin))
        self.block = label

    def line(self, text: str) -> None:
        self._lines.append((f"  {text}", self.module.origin))

    def jump(self, label: str) -> None:
        self.line(f"br label %{label}")

    def branch(self, condition: LlvmValue, yes: str, no: str) -> None:
        self.line(f"br i1 {condition.text}, label %{yes}, label %{no}")

    def assign(self, text: str, element: str, lanes: int = 1, hint: str = "t") -> LlvmValue:
        name = self.name(hint)
        self.line(f"{name} = {text}")
        return LlvmValue(name, element, lanes)

    def phi(self, incoming: Sequence[tuple[LlvmValue, str]]) -> LlvmValue:
        first = incoming[0][0]
        pairs = ", ".join(f"[ {value.text}, %{label} ]" for value, label in incoming)
        return self.assign(f"phi {first.type} {pairs}", first.element, first.lanes, "phi")

    @contextmanager
    def counted_loop(self, start: LlvmValue, stop: LlvmValue, hint: str) -> Iterator[LlvmValue]:
        """Write ``for hint in range(start, stop)`` around the body of the with statement; ``start < stop`` must
        hold."""
        before, body, after = self.block, self.label(f"{hint}.loop"), self.label(f"{hint}.end")
        self.jump(body)
        self.begin_block(body)
        variable, following = self.name(hint), self.name(f"{hint}.next")
        position = len(self._lines)
        yield LlvmValue(variable, "i64")
        phi = f"  {variable} = phi i64 [ {start.text}, %{before} ], [ {following}, %{self.block} ]"
        self._lines.insert(position, (phi, self.module.origin))
        self.line(f"{following} = add nuw nsw i64 {variable}, 1")
        done = self.assign(f"icmp eq i64 {following}, {stop.text}", "i1", hint=f"{hint}.done")
        self.branch(done, after, body)
        self.begin_block(after)

    def alloca(self, type_text: str, hint: str, align: int = 64) -> LlvmValue:
        name, space = self.name(hint), self.module.stack_address_space
        if not space:
            self._allocas.append((f"  {name} = alloca {type_text}, align {align}", self.module.origin))
            return LlvmValue(name, "ptr")
        private = self.name(f"{hint}.private")
        for line in (
            f"  {private} = alloca {type_text}, align {align}, addrspace({space})",
            f"  {name} = addrspacecast ptr addrspace({space}) {private} to ptr",
        ):
            self._allocas.append((line, self.module.origin))
        return LlvmValue(name, "ptr")

    def parameter(self, hint: str, element: str, lanes: int = 1) -> LlvmValue:
        """Name a parameter of the function; ``text`` takes the whole signature."""
        return LlvmValue(self.name(hint), element, lanes)

    def text(self, signature: str) -> FunctionText:
        """Return the definition; ``signature`` is everything between ``define`` and the opening brace."""
        origin = self.module.origin
        head, end = [(f"define {signature} {{", origin), ("entry:", origin)], ("}", origin)
        lines, origins = zip(*head, *self._allocas, *self._lines, end, strict=True)
        return FunctionText("\n".join(lines), origins)

    # These methods write instructions.

    def op(self, opcode: str, a: LlvmValue, b: LlvmValue, flags: str = "", hint: str = "t") -> LlvmValue:
        """Write a binary instruction on two values of one type."""
        word = f"{opcode} {flags}" if flags else opcode
        return self.assign(f"{word} {a.typed}, {b.text}", a.element, a.lanes, hint)

    def compare(self, predicate: str, a: LlvmValue, b: LlvmValue) -> LlvmValue:
        """Compare two values; ``predicate`` is LLVM's: ``olt`` (floats), ``slt``, ``ult``, ``eq``."""
        word = "fcmp" if a.is_float else "icmp"
        return self.assign(f"{word} {predicate} {a.typed}, {b.text}", "i1", a.lanes, "c")

    def select(self, condition: LlvmValue, yes: LlvmValue, no: LlvmValue) -> LlvmValue:
        return self.assign(f"select {condition.typed}, {yes.typed}, {no.typed}", yes.element, yes.lanes)

    def convert(self, opcode: str, value: LlvmValue, element: str) -> LlvmValue:
        """Write ``trunc``, ``sext``, ``sitofp``, ``bitcast`` or another conversion, lane by lane."""
        if value.element == element:
            return value
        target = vector_type(element, value.lanes)
        return self.assign(f"{opcode} {value.typed} to {target}", element, value.lanes)

    def call(
        self, name: str, arguments: Sequence[LlvmValue], element: str, lanes: int = 1, flags: str = "", hint: str = "t"
    ) -> LlvmValue:
        """Call the declared or defined function ``@name``."""
        result = vector_type(element, lanes)
        text = ", ".join(a.typed for a in arguments)
        word = f"call {flags}" if flags else "call"
        return self.assign(f"{word} {result} @{name}({text})", element, lanes, hint)

    def intrinsic(self, name: str, *arguments: LlvmValue, flags: str = "") -> LlvmValue:
        """Call an intrinsic that is overloaded on the type of its first argument, which is also that of its result."""
        first = arguments[0]
        full = f"llvm.{name}.{first.suffix}"
        self.module.declare(f"declare {first.type} @{full}({', '.join(a.type for a in arguments)})")
        return self.call(full, arguments, first.element, first.lanes, flags)

    def splat(self, value: LlvmValue, lanes: int) -> LlvmValue:
        """Return ``value`` in every lane; a vector is returned as it is."""
        if value.lanes == lanes:
            return value
        if not value.text.startswith("%"):
            return LlvmValue(f"splat ({value.typed})", value.element, lanes)
        vector = vector_type(value.element, lanes)
        one = self.assign(f"insertelement {vector} poison, {value.typed}, i64 0", value.element, lanes)
        return self.assign(
            f"shufflevector {one.typed}, {vector} poison, <{lanes} x i32> zeroinitializer", value.element, lanes
        )

    def shuffle(self, a: LlvmValue, b: LlvmValue, lanes: Sequence[int]) -> LlvmValue:
        mask = ", ".join(f"i32 {lane}" for lane in lanes)
        return self.assign(f"shufflevector {a.typed}, {b.typed}, <{len(lanes)} x i32> <{mask}>", a.element, len(lanes))

    def upper_halves(self, a: LlvmValue) -> LlvmValue:
        """Return the upper 16 of the 32 bits of each lane. One shuffle picks them from pairs."""
        pairs = self.assign(f"bitcast {a.typed} to {vector_type('i16', 2 * a.lanes)}", "i16", 2 * a.lanes)
        if a.lanes == 1:
            return self.assign(f"extractelement {pairs.typed}, i64 1", "i16", 1)
        return self.shuffle(pairs, pairs, range(1, 2 * a.lanes, 2))

    # These shorthands serve the mathematical functions.

    def number(self, value: float | int, like: LlvmValue) -> LlvmValue:
        """Return ``value`` as a constant of the type of ``like``."""
        return constant(value, like.element, like.lanes)

    def add(self, a: LlvmValue, b: LlvmValue, flags: str = EXACT) -> LlvmValue:
        return self.op("fadd" if a.is_float else "add", a, b, flags)

    def sub(self, a: LlvmValue, b: LlvmValue, flags: str = EXACT) -> LlvmValue:
        return self.op("fsub" if a.is_float else "sub", a, b, flags)

    def mul(self, a: LlvmValue, b: LlvmValue, flags: str = EXACT) -> LlvmValue:
        return self.op("fmul" if a.is_float else "mul", a, b, flags)

    def div(self, a: LlvmValue, b: LlvmValue, flags: str = EXACT) -> LlvmValue:
        return self.op("fdiv", a, b, flags)

    def fma(self, a: LlvmValue, b: LlvmValue, c: LlvmValue) -> LlvmValue:
        """Write ``a * b + c`` with one rounding."""
        return self.intrinsic("fma", a, b, c)

    def negate(self, a: LlvmValue) -> LlvmValue:
        return self.assign(f"fneg {a.typed}", a.element, a.lanes)

    def absolute(self, a: LlvmValue) -> LlvmValue:
        return self.intrinsic("fabs", a)

    def bits(self, a: LlvmValue) -> LlvmValue:
        """Return the bit pattern of a float as an integer."""
        return self.convert("bitcast", a, integer_of(a.element))

    def polynomial(self, x: LlvmValue, coefficients: Sequence[float]) -> LlvmValue:
        """Evaluate a polynomial by Horner's rule with fused steps; ``coefficients`` begin with the constant term."""
        result = self.number(coefficients[-1], x)
        for c in reversed(coefficients[:-1]):
            result = self.fma(result, x, self.number(c, x))
        return result
