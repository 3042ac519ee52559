"""Makes a module's text of a Triton kernel: the kernel, the helper functions and the constants that it uses."""

import ast
import builtins
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

from ..core.errors import InvalidWorkload

PRELUDE = ("import triton", "import triton.language as tl")


class UnsupportedKernel(InvalidWorkload):
    """A kernel, or a call of one, that the service cannot take. Triton itself can run it."""

    code = "UNSUPPORTED_KERNEL"


@dataclass
class _SourceText:
    """The text so far: names at the top, and functions by name, helpers before those that call them."""

    lines: dict[str, str] = field(default_factory=dict)
    functions: dict[str, tuple[JITFunction[Any], str]] = field(default_factory=dict)

    def define(self, name: str, line: str) -> None:
        if self.lines.setdefault(name, line) != line or name in self.functions:
            raise UnsupportedKernel(f"{name} means different things in the functions of the kernel")

    def add(self, function: JITFunction[Any]) -> None:
        name = function.fn.__name__
        if name in self.functions:
            if self.functions[name][0] is not function:
                raise UnsupportedKernel(f"two functions of the kernel are called {name}")
            return
        text = function.src
        tree = ast.parse(text)
        self.functions[name] = function, ""  # it may call itself
        for used, value in _globals(function, tree):
            self._resolve(used, value)
        if name in self.lines:
            raise UnsupportedKernel(f"{name} means different things in the functions of the kernel")
        decorator = "@triton.jit(noinline=True)" if getattr(function, "noinline", False) else "@triton.jit"
        del self.functions[name]  # behind its helpers
        self.functions[name] = function, f"{decorator}\n{text.strip()}\n"

    def _resolve(self, name: str, value: Any) -> None:
        module = getattr(value, "__module__", None) or ""
        if isinstance(value, JITFunction):
            module = value.fn.__module__
            if not _of_triton(module):
                self.add(value)
                own = value.fn.__name__
                if own != name:
                    self.define(name, f"{name} = {own}")
                return
        if isinstance(value, ModuleType):
            if not _of_triton(value.__name__) and value.__name__ != "triton":
                raise UnsupportedKernel(
                    f"the kernel uses the module {value.__name__}; allowed: those of triton.language"
                )
            line = f"import {value.__name__} as {name}"
            if line.replace(" as triton", "") not in PRELUDE and line not in PRELUDE:
                self.define(name, line)
        elif isinstance(value, tl.dtype):
            self.define(name, f"{name} = triton.language.{_dtype_attribute(value)}")
        elif isinstance(value, tl.constexpr):
            self.define(name, f"{name} = triton.language.constexpr({_literal(name, value.value)})")
        elif _of_triton(module):
            own = getattr(value, "__name__", name)
            self.define(name, f"from {module} import {own}" + (f" as {name}" if own != name else ""))
        elif isinstance(value, int | float | bool | str):
            self.define(name, f"{name} = {_literal(name, value)}")
        else:
            raise UnsupportedKernel(f"the kernel uses {name}, a {type(value).__name__}, which is not sent to a service")

    def text(self) -> str:
        aliases = [line for name, line in self.lines.items() if line.split(" = ")[-1] in self.functions]
        tops = [line for line in self.lines.values() if line not in aliases]
        bodies = [text for _, text in self.functions.values()]
        return "\n".join([*PRELUDE, *tops, "", "", "\n\n".join([*bodies, *aliases]).rstrip(), ""])


def kernel_source(function: Any) -> str:
    """Return the text of a module that has the kernel ``function`` under ``triton.jit``, and all that it uses. Raises
    UnsupportedKernel for what is no data, such as other modules."""
    module = _SourceText()
    module.add(function)
    return module.text()


def _of_triton(module: str) -> bool:
    return module == "triton.language" or module.startswith("triton.language.")


def _globals(function: JITFunction[Any], tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Yield the names that a function reads from around it, with their values."""
    scope: Mapping[str, Any] = {**function.fn.__globals__, **inspect.getclosurevars(function.fn).nonlocals}
    annotated = function.fn.__globals__.get("__annotations__", {})
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.Name)]
    local = {n.id for n in nodes if isinstance(n.ctx, ast.Store)} | {
        n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)
    }
    for name in dict.fromkeys(n.id for n in nodes):
        if name in local or name not in scope:
            continue
        value = scope[name]
        if name in annotated and "constexpr" in str(annotated[name]) and not isinstance(value, tl.constexpr):
            value = tl.constexpr(value)
        if not hasattr(builtins, name) or value is not getattr(builtins, name):
            yield name, value


def _dtype_attribute(value: Any) -> str:
    for name in dir(tl):
        if getattr(tl, name) is value:
            return name
    raise UnsupportedKernel(f"{value} is no dtype of triton.language")


def _literal(name: str, value: Any) -> str:
    if isinstance(value, tl.dtype):
        return f"triton.language.{_dtype_attribute(value)}"
    if value is None or isinstance(value, int | float | bool | str):
        return repr(value)
    raise UnsupportedKernel(
        f"the constant {name} is a {type(value).__name__}; allowed: numbers, texts, dtypes of Triton"
    )


def dtype_constant(value: Any) -> str:
    """Return a dtype of Triton as workloads have it: ``tl.float32``."""
    return f"tl.{_dtype_attribute(value)}"


def triton_version() -> str:
    return str(triton.__version__)
