"""Check who imports whom: the layers, and which third-party packages each of them may know.

Every file is checked on its own, imports inside functions included, so the rules hold for chains
of imports by induction: nothing in `core` can reach boto, nothing in `runtime` can reach torch.
Imports under `if TYPE_CHECKING:` cost nothing at run time and are exempt from the package rule,
not from the layer rule. Not checked: imports by name (`importlib.import_module`).
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# The foundation that every layer may use; it imports nothing of ours but itself.
FOUNDATION = frozenset({"errors", "config", "__init__"})


@dataclass(frozen=True, slots=True)
class Rule:
    """What the modules of one layer may import besides the standard library and the foundation."""

    layers: frozenset[str]
    packages: frozenset[str]


def _rule(layers: str, packages: str) -> Rule:
    return Rule(frozenset(layers.split()), frozenset(packages.split()))


LAYERS = {
    "__init__": _rule("", ""),
    "errors": _rule("", ""),
    "config": _rule("", "pydantic"),
    "core": _rule("", "numpy xxhash"),
    "bucket": _rule("core", "numpy tenacity"),
    "device": _rule("core", "numpy torch"),
    "runtime": _rule("core bucket", "numpy pydantic tenacity"),
    "connector": _rule(
        "core bucket device runtime",
        "huggingface_hub numpy prometheus_client pydantic torch transformers vllm",
    ),
    "cli": _rule("core bucket runtime", "numpy pydantic rich typer"),
}

# Packages that single files may know beyond their layer's rule, each for one reason.
EXCEPTIONS = {
    "s3kv/bucket/s3.py": frozenset({"botocore"}),  # answers that the SDK raises
    "s3kv/bucket/s3_upkeep.py": frozenset({"botocore"}),  # the same
    "s3kv/bucket/s3_leftovers.py": frozenset({"botocore"}),  # the same
    "s3kv/bucket/bodies.py": frozenset({"boto3", "botocore"}),  # zero-copy bodies
    "s3kv/bucket/sdk.py": frozenset({"aiobotocore", "boto3", "botocore"}),  # makes the clients
    "s3kv/bucket/errors_map.py": frozenset({"aiohttp", "botocore", "urllib3"}),  # translates errors
    "s3kv/cli/demo_bucket.py": frozenset({"boto3", "botocore"}),  # an outsider to the archive
    "s3kv/cli/local_store.py": frozenset({"boto3"}),  # makes buckets, which nothing else does
    "s3kv/cli/prompt_keys.py": frozenset({"jinja2", "transformers"}),  # tokenises where they are
}


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module: its dotted name, its line, and whether only type checkers see it."""

    module: str
    line: int
    typing_only: bool


def imports_of(source: str) -> Iterator[Import]:
    """Every absolute import in a file's text, wherever it stands; relative ones as `.`."""
    tree = ast.parse(source)
    hidden = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, id(node) in hidden)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield Import(".", node.lineno, id(node) in hidden)
                continue
            module = node.module or ""
            names = [f"s3kv.{alias.name}" for alias in node.names] if module == "s3kv" else [module]
            for name in names:
                yield Import(name, node.lineno, id(node) in hidden)


def _broken(layer: str, extra: frozenset[str], found: Import) -> str | None:
    """Why this import is not allowed in that layer, or None."""
    rule = LAYERS[layer]
    top, _, rest = found.module.partition(".")
    if top == "":
        return "relative import; write the full name"
    if top == "s3kv":
        target = rest.partition(".")[0]
        known = target in LAYERS
        if not known or target in {layer} | rule.layers | FOUNDATION:
            return None
        return f"{layer} must not import {target}"
    if found.typing_only or top in sys.stdlib_module_names or top in rule.packages | extra:
        return None
    return f"{layer} must not import {top}"


def check_file(path: str, source: str) -> list[str]:
    """Broken rules of one file, as `path:line: reason`.

    path: relative to the repository root, below `s3kv/`.
    """
    parts = Path(path).parts
    layer = parts[1].removesuffix(".py")
    if layer not in LAYERS:
        return [f"{path}:1: {layer} is no known layer; add it to tools/check_imports.py"]
    extra = EXCEPTIONS.get(path, frozenset())
    reasons = ((found.line, _broken(layer, extra, found)) for found in imports_of(source))
    return [f"{path}:{line}: {reason}" for line, reason in reasons if reason]


def check_tree(root: Path = ROOT) -> list[str]:
    """Broken rules of the whole package."""
    return [
        problem
        for path in sorted((root / "s3kv").rglob("*.py"))
        for problem in check_file(path.relative_to(root).as_posix(), path.read_text("utf-8"))
    ]


def main() -> int:
    """Print every broken rule; 1 if there is one."""
    problems = check_tree()
    for problem in problems:
        print(problem)
    print(f"import rules: {'broken' if problems else 'kept'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
