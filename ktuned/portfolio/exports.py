"""Portfolios as code that does not need ktuned: a Python function, a C header, or JSON."""

from __future__ import annotations

import json
import keyword
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ktuned.model import Config, Scalar, UsageError
from ktuned.portfolio.fit import Portfolio
from ktuned.portfolio.tree import MOST_FACTOR, Condition, Figure, Leaf, Tree

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def render_json(kernel: str, device: str, portfolio: Portfolio) -> str:
    """Return the portfolio as ``ktuned portfolio --json`` prints it: configs as maps, and the tree."""
    document: dict[str, Any] = {"kernel": kernel, "device": device, **portfolio.to_wire()}
    document["configs"] = [json.loads(config) for config in portfolio.configs]
    document["tree"] = _number_configs(document["tree"], portfolio.configs)
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _number_configs(tree: dict[str, Any], configs: list[str]) -> dict[str, Any]:
    """Return a tree whose leaves refer to configs by their place in the list."""
    if "config" in tree:
        return {**tree, "config": configs.index(tree["config"])}
    return {**tree, **{side: _number_configs(tree[side], configs) for side in ("passing", "failing")}}


def render_python(kernel: str, device: str, portfolio: Portfolio) -> str:
    """Return a module with ``CONFIGS`` and ``choose_config(problem)``."""
    configs = "".join(f"    {json.loads(config)!r},\n" for config in portfolio.configs)
    head = "\n".join(f"# {line}" for line in _describe_portfolio(kernel, device, portfolio))
    body = _render_branches(
        portfolio.tree, portfolio.configs, _render_python_condition, ("if {}:", "else:", ""), "return {}", "    "
    )
    return (
        f"{head}\n\nCONFIGS = [\n{configs}]\n\n\n"
        f'def choose_config(problem):\n    """Return the config for a problem, a dict."""\n'
        f"    return CONFIGS[_choose(problem)]\n\n\ndef _choose(problem):\n{body}"
    )


def render_c(kernel: str, device: str, portfolio: Portfolio) -> str:
    """Return a header with a struct for configs, all configs, and a function of the problem's fields.

    Raises:
        UsageError: A knob has values of several types, or a name is not valid in C.
    """
    configs = [json.loads(config) for config in portfolio.configs]
    name = re.sub(r"[^A-Za-z0-9_]", "_", kernel.rpartition(":")[2])
    knobs = {knob: _choose_c_type(knob, configs) for knob in configs[0]}
    figures = sorted(_find_c_fields(portfolio.tree).items())
    for word in (*knobs, *(field for field, _ in figures)):
        if not _WORD.fullmatch(word) or keyword.iskeyword(word):
            raise UsageError(f"{word!r} is not a valid name in C", hint="export as JSON or Python")
    arguments = ", ".join(f"{kind}{field}" for field, kind in figures) or "void"
    rows = "".join("    {" + ", ".join(_render_c_value(config[knob]) for knob in knobs) + "},\n" for config in configs)
    fields = "".join(f"    {kind}{knob};\n" for knob, kind in knobs.items())
    body = _render_branches(
        portfolio.tree,
        portfolio.configs,
        _render_c_condition,
        ("if ({}) {{", "}} else {{", "}}"),
        f"return &{name}_configs[{{}}];",
        "    ",
    )
    head = "\n".join(f" * {line}" for line in _describe_portfolio(kernel, device, portfolio))
    return (
        f"/*\n{head}\n */\n#pragma once\n\n#include <stdbool.h>\n#include <string.h>\n\n"
        f"typedef struct {{\n{fields}}} {name}_config;\n\n"
        f"static const {name}_config {name}_configs[] = {{\n{rows}}};\n\n"
        f"static inline const {name}_config *{name}_choose({arguments}) {{\n{body}}}\n"
    )


def describe_condition(condition: Condition) -> str:
    """Return a condition in words."""
    figure, limit = condition.figure, condition.limit
    if figure[0] == "=":
        return f"{figure[1]} is {limit}"
    if figure[0] == "2^":
        return f"{figure[1]} is not divisible by {_find_next_power(limit)}"
    return f"{' · '.join(figure)} ≤ {limit:g}"


def describe_tree(tree: Tree, configs: Sequence[str], depth: int = 0) -> Iterator[tuple[int, str]]:
    """Yield a tree's lines, each with its depth; a leaf names the number of its config."""
    if isinstance(tree, Leaf):
        yield depth, f"config {configs.index(tree.config)}, expected loss {tree.expected_loss:.1%}"
        return
    yield depth, f"{describe_condition(tree.condition)}:"
    yield from describe_tree(tree.passing, configs, depth + 1)
    yield depth, "else:"
    yield from describe_tree(tree.failing, configs, depth + 1)


def _describe_portfolio(kernel: str, device: str, portfolio: Portfolio) -> list[str]:
    return [
        f"{kernel} on {device}: {len(portfolio.configs)} configs for {portfolio.problems} measured problems.",
        f"Expected loss on others: {portfolio.expected_loss:.2%}; of one config for all: {portfolio.single_loss:.2%}.",
        "Written by `ktuned portfolio`.",
    ]


def _render_branches(
    tree: Tree,
    configs: list[str],
    condition: Callable[[Condition], str],
    words: tuple[str, str, str],
    result: str,
    indent: str,
) -> str:
    if isinstance(tree, Leaf):
        return f"{indent}{result.format(configs.index(tree.config))}\n"
    begin, other, end = words
    passing, failing = (
        _render_branches(side, configs, condition, words, result, indent + "    ")
        for side in (tree.passing, tree.failing)
    )
    closing = f"{indent}{end.format()}\n" if end else ""
    return f"{indent}{begin.format(condition(tree.condition))}\n{passing}{indent}{other.format()}\n{failing}{closing}"


def _render_python_condition(condition: Condition) -> str:
    figure, limit = condition.figure, condition.limit
    if figure[0] == "=":
        return f"problem[{figure[1]!r}] == {limit!r}"
    if figure[0] == "2^":
        return f"problem[{figure[1]!r}] % {_find_next_power(limit)} != 0"
    return f"{' * '.join(f'problem[{name!r}]' for name in figure)} <= {limit!r}"


def _render_c_condition(condition: Condition) -> str:
    figure, limit = condition.figure, condition.limit
    if figure[0] == "=":
        if isinstance(limit, str):
            return f"strcmp({figure[1]}, {_render_c_value(limit)}) == 0"
        return f"{figure[1]} == {_render_c_value(limit)}"
    if figure[0] == "2^":
        return f"{figure[1]} % {_find_next_power(limit)} != 0"
    product = " * ".join(f"(double){name}" for name in figure)
    return f"{product} <= {float(limit)!r}"


def _find_next_power(limit: Scalar) -> int:
    """Return the least power of two above a limit: numbers beyond the limit are divisible by it."""
    return int(min(MOST_FACTOR, 2 ** (math.floor(math.log2(float(limit))) + 1)))


def _find_c_fields(tree: Tree) -> Mapping[str, str]:
    """Return the fields that a tree uses, with their C types."""
    if isinstance(tree, Leaf):
        return {}
    found = {**_find_c_fields(tree.passing), **_find_c_fields(tree.failing)}
    return {**found, **_choose_field_types(tree.condition.figure, tree.condition.limit)}


def _choose_field_types(figure: Figure, limit: Scalar) -> Mapping[str, str]:
    if figure[0] == "=":
        return {figure[1]: "const char *" if isinstance(limit, str) else "bool "}
    return dict.fromkeys(figure[1:] if figure[0] == "2^" else figure, "long long ")


def _choose_c_type(knob: str, configs: list[Config]) -> str:
    kinds = {type(config.get(knob)) for config in configs}
    if len(kinds) != 1:
        raise UsageError(f"the knob {knob!r} has values of several types", hint="export as JSON or Python")
    (kind,) = kinds
    return {bool: "bool ", int: "long long ", float: "double "}.get(kind, "const char *")


def _render_c_value(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value)
