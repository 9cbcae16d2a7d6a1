"""User functions as values: transported and compared by content, never executed in transit.

A dataflow in JSON form may hold pickled code. Reading, validating, comparing and storing it never loads that
code; only a zone's Spark does, if the dataflow is trusted.
"""

from __future__ import annotations

import ast
import base64
import dis
import functools
import hashlib
import importlib.util
import inspect
import linecache
import pickle
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import cloudpickle

from headwater.core.errors import DataflowError
from headwater.core.text import shown_value

_LONGEST = 300  # characters of an exception's text, and of a row


@dataclass(frozen=True, slots=True)
class PythonFunction:
    """A function: name, fingerprint of its content, and base64 of its pickled form."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    name: str
    fingerprint: str
    pickled: str

    @classmethod
    def of(cls, function: Callable[..., Any], *, where: str) -> PythonFunction:
        """Capture ``function`` with everything it refers to; refuse one that cannot be pickled."""
        if not callable(function):
            raise DataflowError(f"{shown_value(function)} is not a function", where=where, hint="pass a function")
        try:
            # Functions of the user's own files are pickled by value: a zone does not have these files.
            with _by_value():
                pickled = cloudpickle.dumps(function)
        except Exception as error:
            raise DataflowError(
                f"function {_name(function)} cannot be sent to another host: {error}",
                where=where,
                hint="create connections, locks and open files inside the function, not outside",
            ) from error
        return cls(_name(function), fingerprint(function), base64.b64encode(pickled).decode())

    def load(self) -> Callable[..., Any]:
        """Unpickle the function. This executes code: only for trusted dataflows."""
        loaded = pickle.loads(base64.b64decode(self.pickled))
        if not callable(loaded):
            raise DataflowError(f"'{self.name}' is not a function", hint="submit the dataflow again")
        return loaded  # type: ignore[no-any-return]


@contextmanager
def _by_value() -> Iterator[None]:
    """Within the block, cloudpickle pickles modules of the user's own files by value."""
    modules = [m for m in list(sys.modules.values()) if isinstance(m, types.ModuleType) and _is_users(m)]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _is_users(module: types.ModuleType) -> bool:
    """Return whether a module is one of the user's own files, not an installed one."""
    file = getattr(module, "__file__", None)
    if module.__name__ == "__main__" or file is None:
        return False  # cloudpickle pickles __main__ by value anyway, built-ins never
    return _is_users_file(file) and not _is_ours(module)


def _is_users_file(file: str) -> bool:
    return "site-packages" not in file and not file.startswith(sys.base_prefix)


def _is_users_type(cls: type) -> bool:
    module = sys.modules.get(cls.__module__ or "")
    return cls.__module__ == "__main__" or (module is not None and _is_users(module))


def _is_installed(function: types.FunctionType) -> bool:
    """Return whether a function travels by name, so that a zone runs that of its own version of a package."""
    module = sys.modules.get(function.__module__ or "")
    if module is None or not getattr(module, "__file__", None) or module.__name__ == "__main__" or _is_users(module):
        return False
    found: Any = module
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function


def _is_ours(module: types.ModuleType) -> bool:
    return module.__name__.split(".")[0] == "headwater"


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def fingerprint(function: Callable[..., Any]) -> str:
    """Hash the behaviour of a function: its code, defaults, closure and the user's functions it calls.

    It hashes the syntax tree if the source is available, so that neither comments, layout nor the Python version
    change the hash; byte code otherwise (a REPL).
    """
    digest = hashlib.sha256()
    for part in _parts(function, seen={}):
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()[:32]


def _parts(value: Any, *, seen: dict[int, int]) -> Iterator[str]:
    """Yield the content of a value; ``seen``: the numbers of the objects that were visited, by id."""
    if id(value) in seen:
        yield f"seen {seen[id(value)]}"
        return
    if isinstance(value, types.FunctionType) and _is_installed(value):
        yield f"{value.__module__}.{value.__qualname__}"
    elif isinstance(value, types.FunctionType):
        seen[id(value)] = len(seen)
        yield "function"
        yield _code_text(value.__code__)
        for default in (*(value.__defaults__ or ()), *sorted((value.__kwdefaults__ or {}).items())):
            yield from _parts(default, seen=seen)
        for cell in value.__closure__ or ():
            try:
                yield from _parts(cell.cell_contents, seen=seen)
            except ValueError:  # not yet filled: a recursive inner function
                yield "empty"
        for name in sorted(_global_names(value.__code__)):
            if name in value.__globals__:
                yield name
                yield from _parts(value.__globals__[name], seen=seen)
        if value.__dict__:
            yield from _parts(value.__dict__, seen=seen)
        for module in _imported_inside(value):
            yield from _parts(module, seen=seen)
    elif isinstance(value, types.ModuleType):
        yield f"module {value.__name__}"
        if _is_users(value):
            for module in (value, *_imported_by(value)):
                yield f"module {module.__name__}"
                yield _source_hash(module)
                yield from _data(module, seen)
    elif isinstance(value, types.MethodType):
        yield from _parts(value.__func__, seen=seen)
        yield from _parts(value.__self__, seen=seen)
    elif isinstance(value, (type, types.BuiltinFunctionType)):
        seen[id(value)] = len(seen)
        yield f"{value.__module__}.{value.__qualname__}"
        if isinstance(value, type) and _is_users_type(value):
            for base in value.__bases__:
                yield from _parts(base, seen=seen)
            for name, member in sorted(vars(value).items()):
                for part in _members(name, member):
                    yield name
                    yield from _parts(part, seen=seen)
    elif value is None or type(value) in _PLAIN:
        yield f"{type(value).__name__} {value!r}"
    elif isinstance(value, functools.partial):
        yield "partial"
        yield from _parts((value.func, value.args, value.keywords), seen=seen)
    elif type(value) in (list, tuple, set, frozenset, dict):
        yield from _contents(value, seen)
    elif _is_users_type(type(value)):
        seen[id(value)] = len(seen)
        yield from _parts(type(value), seen=seen)
        yield from _own(value, seen)
    elif callable(getattr(value, "__wrapped__", None)):  # a function behind a cache
        yield f"{type(value).__module__}.{type(value).__qualname__}"
        yield from _parts(value.__wrapped__, seen=seen)
    else:
        seen[id(value)] = len(seen)
        yield from _parts(type(value), seen=seen)
        try:
            yield hashlib.sha256(cloudpickle.dumps(value)).hexdigest()
        except Exception:
            yield "opaque"


_PLAIN = frozenset([bool, int, float, complex, str, bytes])


def _contents(value: Any, seen: dict[int, int]) -> Iterator[str]:
    """Yield the contents of a container of Python's own; a set's in an order that all processes have in common."""
    yield next(kind.__name__ for kind in (list, tuple, set, frozenset, dict) if isinstance(value, kind))
    known = id(value) in seen
    seen.setdefault(id(value), len(seen))  # during the visit only: the value may contain itself
    if isinstance(value, dict):
        for key in sorted(value, key=repr):
            yield from _parts(key, seen=seen)
            yield from _parts(value[key], seen=seen)
    elif isinstance(value, (set, frozenset)):
        yield from sorted("\0".join(_parts(item, seen=dict(seen))) for item in value)
    else:
        for item in value:
            yield from _parts(item, seen=seen)
    if not known:
        del seen[id(value)]


def _own(value: Any, seen: dict[int, int]) -> Iterator[str]:
    """Yield the state of an object of a user's class: its attributes, and what a class of Python's own gives it."""
    yield from _parts(getattr(value, "__dict__", {}), seen=seen)
    slots = [s for cls in type(value).__mro__ for s in _names(vars(cls).get("__slots__", ()))]
    yield from _contents([(s, getattr(value, s)) for s in slots if hasattr(value, s)], seen)
    for kind in (list, tuple, set, frozenset, dict):
        if isinstance(value, kind):
            yield from _contents(value, seen)
    for plain in (int, float, complex, str, bytes):
        if isinstance(value, plain):
            yield plain.__repr__(value)


def _names(slots: Any) -> list[str]:
    return [slots] if isinstance(slots, str) else [s for s in slots if not s.startswith("__")]


def _data(module: types.ModuleType, seen: dict[int, int]) -> Iterator[str]:
    """Yield a module's values that are neither code nor a dataflow: they may come from a file it reads."""
    for name, value in sorted(vars(module).items()):
        code = isinstance(value, (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType))
        if not name.startswith("__") and not code and type(value).__module__.split(".")[0] != "headwater":
            yield name
            yield from _parts(value, seen=seen)


def _imported_inside(function: types.FunctionType) -> list[types.ModuleType]:
    """Return the user's modules that a function imports when it is called, as far as they are loaded."""
    tree = _syntax(function.__code__)
    package = function.__globals__.get("__package__")
    names = sorted(set(_import_names(tree, package))) if tree is not None else []
    return [m for name in names if (m := sys.modules.get(name)) is not None and _is_users(m)]


def _source_hash(module: types.ModuleType) -> str:
    return hashlib.sha256(_source(module).encode()).hexdigest()


def _source(module: types.ModuleType) -> str:
    linecache.checkcache(module.__file__)
    return "".join(linecache.getlines(module.__file__ or ""))


def _imported_by(module: types.ModuleType) -> list[types.ModuleType]:
    """Return the user's modules that a module imports, and those that they import, by name."""
    found: dict[str, types.ModuleType] = {}
    todo = [module]
    while todo:
        one = todo.pop()
        for name in _imports(one):
            other = sys.modules.get(name)
            if other is not None and other is not module and name not in found and _is_users(other):
                found[name] = other
                todo.append(other)
    return [found[name] for name in sorted(found)]


def _imports(module: types.ModuleType) -> Iterator[str]:
    """Yield the names of modules that a module imports, or may import; and the loaded ones inside a package."""
    if hasattr(module, "__path__"):
        yield from [name for name in list(sys.modules) if name.startswith(f"{module.__name__}.")]
    try:
        tree = ast.parse(_source(module))
    except SyntaxError:
        return
    yield from _import_names(tree, module.__package__)


def _import_names(tree: ast.AST, package: str | None) -> Iterator[str]:
    """Yield the names of modules that import statements of a syntax tree name, or may name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                yield from (".".join(parts[: n + 1]) for n in range(len(parts)))
        elif isinstance(node, ast.ImportFrom):
            name = "." * node.level + (node.module or "")
            try:
                base = importlib.util.resolve_name(name, package or None)
            except ImportError:  # a relative import outside a package
                continue
            parts = base.split(".")
            yield from (".".join(parts[: n + 1]) for n in range(len(parts)))
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _members(name: str, member: Any) -> list[Any]:
    """Return the behaviour in a class member; not what Python itself puts into every class."""
    if isinstance(member, (staticmethod, classmethod)):
        return [member.__func__]
    if isinstance(member, property):
        return [f for f in (member.fget, member.fset) if f is not None]
    if isinstance(member, functools.cached_property):
        return [member.func]
    if isinstance(member, types.FunctionType):
        return [member]
    given = isinstance(member, (types.MemberDescriptorType, types.GetSetDescriptorType))
    return [] if given or name.startswith(("__", "_abc_")) else [member]


def _global_names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names


def _code_text(code: types.CodeType) -> str:
    node = _syntax(code)
    if node is None:
        return _byte_code(code)
    for inner in ast.walk(node):  # docstrings are not behaviour
        if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            first = inner.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                inner.body = inner.body[1:] or [ast.Pass()]
    return ast.dump(node)


def _byte_code(code: types.CodeType) -> str:
    steps = [(step.opname, _constant(step.argval)) for step in dis.get_instructions(code)]
    return repr((steps, code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]))


def _constant(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return _byte_code(value)
    # The order of a set differs between processes.
    return repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value)


def _syntax(code: types.CodeType) -> ast.AST | None:
    """Return the function's or lambda's syntax tree by its position in its file, or None."""
    lines = linecache.getlines(code.co_filename)
    try:
        tree = ast.parse("".join(lines)) if lines else None
    except SyntaxError:
        return None
    if tree is None:
        return None
    place = code.co_firstlineno
    found: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == code.co_name:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first == place:
                found.append(node)
        elif isinstance(node, ast.Lambda) and code.co_name == "<lambda>" and node.lineno == place:
            found.append(node)
    if len(found) > 1:  # several lambdas in one line: choose by column
        columns = [p[2] for p in code.co_positions() if p[2] is not None and p[0] == place]
        if not columns:
            return None
        start = min(columns)
        found = [n for n in found if n.col_offset <= start <= (n.end_col_offset or 0)]  # type: ignore[attr-defined]
        found.sort(key=lambda n: n.col_offset, reverse=True)  # type: ignore[attr-defined]
    return found[0] if found else None


def raised(error: BaseException, row: object = None) -> str:
    """Describe an exception of a user's function in one line: type, text, line of the user's file, row."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0][:_LONGEST]}" if lines else type(error).__name__
    ours = str(Path(__file__).parents[1])
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        # Pickled code has lost the name of its file; its globals have it.
        code, file = frame.f_code, str(frame.f_globals.get("__file__") or frame.f_code.co_filename)
        if _is_users_file(file) and not file.startswith((ours, "<frozen")):
            text += f" at {Path(file).name}:{line} in {code.co_name}"
            break
    return text if row is None else f"{text}; row {str(row)[:_LONGEST]}"


def accepts(function: Callable[..., Any], arguments: int) -> bool:
    """Return whether ``function`` can be called with that many positional arguments."""
    try:
        inspect.signature(function).bind(*([None] * arguments))
    except TypeError:
        return False
    except ValueError:  # a built-in without a signature
        return True
    return True
