"""Finds in source what could run somebody else's code, read off the syntax tree.

Names are followed through imports, assignments, ``getattr`` and ``import_module`` with a literal name. What hides
better than that is beyond a test.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

MODULES_THAT_LOAD = ("pickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve")
LOADERS = ("load", "loads", "Unpickler", "open", "Shelf", "DbfilenameShelf")
SHELLS = {"os.system", "os.popen", "posix.system", "subprocess.getoutput", "subprocess.getstatusoutput"}
TORCH_LOAD = {"torch.load", "torch.serialization.load"}
BANNED = {f"{module}.{loader}" for module in MODULES_THAT_LOAD for loader in LOADERS} | SHELLS
BANNED |= {"builtins.eval", "builtins.exec"}
OFF = {"allow_pickle": False, "shell": False, "weights_only": True}
"""The only value, written out, that each of these arguments may have."""

Names = dict[str, str]


def findings(source: str) -> list[str]:
    """Return what is wrong with a file, each as ``line: what``."""
    tree = ast.parse(source)
    names = names_of(tree)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    found = [(node, what) for node in ast.walk(tree) for what in faults(node, names, id(node) in called)]
    return [f"{getattr(node, 'lineno', 0)}: {what}" for node, what in found]


def faults(node: ast.AST, names: Names, is_called: bool) -> Iterator[str]:
    """Yield what is wrong with one node."""
    if isinstance(node, ast.ExceptHandler) and node.type is None:
        yield "except without saying what"
    elif isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names) and not is_own(node):
        yield f"from {node.module} import *"
    elif isinstance(node, ast.Call):
        yield from call_faults(node, names)
    elif isinstance(node, ast.Dict):
        yield from (f"{name} in a dict" for name in dict_faults(node))
    if isinstance(node, (ast.Name, ast.Attribute, ast.Call)) and not is_stored(node):
        path = dotted(node, names)
        if path in BANNED or (path in TORCH_LOAD and not is_called):
            yield str(path)


def is_own(node: ast.ImportFrom) -> bool:
    """Return whether a module is one of this project, whose source is searched too."""
    return (node.module or "").startswith("lightning_ding.")


def call_faults(call: ast.Call, names: Names) -> Iterator[str]:
    """Yield the arguments of a call that are not what they have to be."""
    path = dotted(call.func, names) or ""
    given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
    if path == "numpy.load" and len(call.args) > 2:
        given["allow_pickle"] = call.args[2]
    is_load = path.rpartition(".")[2].startswith("load")
    checked = {name for name in given if name in OFF and (name != "weights_only" or is_load)}
    yield from (f"{name} must be {OFF[name]}" for name in sorted(checked) if not is_literally(given[name], OFF[name]))
    if path in TORCH_LOAD and "weights_only" not in given:
        yield "torch.load without weights_only=True"


def dict_faults(node: ast.Dict) -> Iterator[str]:
    """Yield the keys of a dict that may be meant as arguments and are not what they have to be."""
    for key, value in zip(node.keys, node.values, strict=True):
        name = key.value if isinstance(key, ast.Constant) else None
        if name in ("allow_pickle", "shell") and not is_literally(value, False):
            yield str(name)


def is_literally(node: ast.expr, value: bool) -> bool:
    """Return whether a node is that constant, written out."""
    return isinstance(node, ast.Constant) and node.value is value


def is_stored(node: ast.expr) -> bool:
    """Return whether a name is bound here, not read."""
    return not isinstance(getattr(node, "ctx", ast.Load()), ast.Load)


def names_of(tree: ast.Module) -> Names:
    """Return what the names of a file stand for, as far as it says; a name without an entry is its own or a builtin."""
    names: Names = {"eval": "builtins.eval", "exec": "builtins.exec", "__import__": "builtins.__import__"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                names[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for _ in range(3):  # a name of a name of a name
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                path = dotted(node.value, names)
                names |= {node.targets[0].id: path} if path else {}
    return names


def dotted(node: ast.expr, names: Names) -> str | None:
    """Return the dotted path that an expression stands for; None if it cannot be told."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value, names)
        return f"{owner or '?'}.{node.attr}"
    if isinstance(node, ast.Call):
        return dotted_of_call(node, names)
    return None


def dotted_of_call(call: ast.Call, names: Names) -> str | None:
    """Return the dotted path that ``import_module("a")`` or ``getattr(a, "b")`` stands for."""
    literal = [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
    name = literal[0] if literal and isinstance(literal[0], str) else None
    if name is None:
        return None
    if dotted(call.func, names) in ("importlib.import_module", "builtins.__import__"):
        return name
    if isinstance(call.func, ast.Name) and call.func.id == "getattr":
        return f"{dotted(call.args[0], names) or '?'}.{name}"
    return None
