"""Winners as files for programs without ktuned: JSON keyed by one size, as vLLM reads it, and a header for C and C++.

Both are made from a document of winners (``docs/sharing.md``): a kernel, a device model, and for each problem a config.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from ktuned.model import Config, Scalar, UsageError, listed
from ktuned.protocol import WinnersDocument

_C_TYPES = {bool: "bool", int: "int64_t", float: "double", str: "const char *"}

_SMALLEST_INTEGER = -(2**63)


def render_vllm_files(document: WinnersDocument, by: str) -> dict[str, str]:
    """Return files of configs keyed by one size: ``{"16": {"BLOCK_SIZE_M": 32, …}, …}``.

    There is one file for each choice of the problem's other keys, and its name contains them: vLLM's fused MoE kernels
    look for ``E=8,N=14336,device_name=NVIDIA_H100.json`` (https://github.com/vllm-project/vllm).

    Raises:
        UsageError: a winner's problem has no such size.
    """
    files: dict[str, dict[int, Config]] = {}
    for winner in document.winners:
        problem = dict(winner.problem)
        size = problem.pop(by, None)
        if type(size) is not int:
            hint = f"name an integer of it with --by {listed(winner.problem)}"
            raise UsageError(f"{document.kernel}: its problem has no size {by!r}", hint=hint)
        keys = [f"{key}={value}" for key, value in problem.items()]
        name = ",".join([*keys, f"device_name={document.device.replace(' ', '_')}"]).replace("/", "_")
        files.setdefault(f"{name}.json", {})[size] = winner.config
    return {
        name: json.dumps({str(size): dict(configs[size]) for size in sorted(configs)}, indent=4) + "\n"
        for name, configs in files.items()
    }


def render_c_file(document: WinnersDocument) -> tuple[str, str]:
    """Return the name and the text of a header with a table of winners, and a function that finds the nearest one.

    The header is valid C99 and C++11, and needs only libm. Two problems have the same distance as in ktuned: the sum of
    |log2| of the ratios of their sizes, where a difference without a ratio counts as a factor of 16.

    Raises:
        UsageError: a value or name cannot be written in C.
    """
    name = _cpp_identifier(f"ktuned_{document.kernel.rpartition(':')[2]}")
    problem = _list_struct_members(document, [winner.problem for winner in document.winners], "problem")
    config = _list_struct_members(document, [winner.config for winner in document.winners], "config")
    guard = _cpp_identifier(f"{name}_{document.device}_H").upper()
    rows = [
        f"    {{{{{_initialise_row(winner.problem, problem)}}}, {{{_initialise_row(winner.config, config)}}}, "
        f"{_cpp_literal(winner.latency_us, float)}}},"
        for winner in document.winners
    ]
    terms = [f"  total += {_render_c_distance(name, key, kind)};" for key, kind in problem.items()]
    lines = [
        f"/* Winners of {_escape_comment(document.kernel)} on {_escape_comment(document.device)}, by ktuned. */",
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        "#include <math.h>",
        "#include <stdbool.h>",
        "#include <stddef.h>",
        "#include <stdint.h>",
        "#include <string.h>",
        "",
        *_declare_struct(f"{name}_problem", problem),
        "",
        *_declare_struct(f"{name}_config", config),
        "",
        f"typedef struct {name}_winner {{",
        f"  {name}_problem problem;",
        f"  {name}_config config;",
        "  double latency_us;",
        f"}} {name}_winner;",
        "",
        f"static const {name}_winner {name}_winners[] = {{",
        *rows,
        "};",
        "",
        "/* A size's distance: the ratio of two as a power of two, or as a factor of 16 where there is none. */",
        f"static inline double {name}_ratio(double a, double b) {{",
        "  if (a == b) return 0.0;",
        "  return a > 0.0 && b > 0.0 ? fabs(log2(a / b)) : 4.0;",
        "}",
        "",
        f"static inline double {name}_distance(const {name}_problem *a, const {name}_problem *b) {{",
        "  double total = 0.0;",
        *terms,
        "  return total;",
        "}",
        "",
        "/* Return the winner of the problem that is nearest to this one. */",
        f"static inline const {name}_winner *{name}_nearest(const {name}_problem *problem) {{",
        f"  const {name}_winner *best = {name}_winners;",
        f"  for (size_t i = 1; i < sizeof {name}_winners / sizeof {name}_winners[0]; ++i)",
        f"    if ({name}_distance(problem, &{name}_winners[i].problem) < {name}_distance(problem, &best->problem))",
        f"      best = &{name}_winners[i];",
        "  return best;",
        "}",
        "",
        f"#endif /* {guard} */",
    ]
    return f"{guard.lower().removesuffix('_h')}.h", "\n".join(lines) + "\n"


def _list_struct_members(document: WinnersDocument, rows: Iterable[Mapping[str, Scalar]], what: str) -> dict[str, type]:
    """Return the members, with their types, of a structure that can hold every row."""
    found: dict[str, type] = {}
    names: dict[str, str] = {}
    for row in rows:
        for key, value in row.items():
            kind = type(value)
            known = found.setdefault(key, kind)
            if kind is not known and {kind, known} == {int, float}:
                found[key] = float
            elif kind is not known:
                raise UsageError(
                    f"{document.kernel}: the {what}'s {key} is a {known.__name__} here and a {kind.__name__} there",
                    hint="C needs one type",
                )
            if names.setdefault(_cpp_identifier(key), key) != key:
                raise UsageError(f"{document.kernel}: {key} and {names[_cpp_identifier(key)]} are one name in C")
    return found


def _declare_struct(name: str, members: Mapping[str, type]) -> list[str]:
    # C has no empty structures.
    inner = [f"  {_C_TYPES[kind]} {_cpp_identifier(key)};".replace("* ", "*") for key, kind in members.items()]
    return [f"typedef struct {name} {{", *(inner or ["  char none;"]), f"}} {name};"]


def _initialise_row(values: Mapping[str, Scalar], members: Mapping[str, type]) -> str:
    return ", ".join(_cpp_literal(values.get(key, kind()), kind) for key, kind in members.items()) or "0"


def _cpp_literal(value: Scalar, kind: type) -> str:
    if kind is bool:
        return "true" if value else "false"
    if kind is int:
        if not _SMALLEST_INTEGER < int(value) < -_SMALLEST_INTEGER:
            raise UsageError(f"{value} does not fit 64 bits with a sign")
        return f"INT64_C({value})"
    if kind is float:
        return repr(float(value))
    # Octal escapes, because a hexadecimal escape would absorb the letters after it.
    quoted = "".join(
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}" for byte in str(value).encode()
    )
    return f'"{quoted}"'


def _render_c_distance(name: str, key: str, kind: type) -> str:
    member = _cpp_identifier(key)
    if kind is str:
        # An unset string is a null pointer.
        return f"a->{member} && b->{member} && strcmp(a->{member}, b->{member}) == 0 ? 0.0 : 4.0"
    if kind is bool:
        return f"a->{member} == b->{member} ? 0.0 : 4.0"
    return f"{name}_ratio((double)a->{member}, (double)b->{member})"


_C_WORDS = frozenset(
    """alignas alignof and asm auto bool break case catch char class const constexpr continue decltype default delete do
    double else enum explicit export extern false float for friend goto if inline int long mutable namespace new not
    nullptr operator or private protected public register restrict return short signed sizeof static struct switch
    template this throw true try typedef typeid typename union unsigned using virtual void volatile while xor""".split()  # noqa: SIM905
)
"""Keywords of C and C++, which cannot be names of members."""


def _cpp_identifier(text: str) -> str:
    name = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_") or "unnamed"
    return f"k_{name}" if name in _C_WORDS or name[0].isdigit() else name


def _escape_comment(text: str) -> str:
    return " ".join(text.split()).replace("*/", "* /")
