"""A portfolio as code chooses as the portfolio itself does."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ktuned.model import UsageError, canonical
from ktuned.portfolio import Matrix, Portfolio, fit_portfolio, render_c, render_json, render_python
from tests.portfolio import gemm_model

PROBLEMS: list[dict[str, Any]] = [
    {**problem, "dtype": dtype, "causal": causal}
    for problem in gemm_model.shapes(40, 5)
    for dtype, causal in (("f16", True), ("f32", False))
]
NEW: list[dict[str, Any]] = [
    {**problem, "dtype": dtype, "causal": causal}
    for problem in gemm_model.shapes(100, 6)
    for dtype, causal in (("f16", True), ("f32", True), ("i8", False))
]


@pytest.fixture(scope="module")
def portfolio() -> Portfolio:
    """Return a portfolio whose tree looks at fields of all kinds."""
    costs = []
    for problem in PROBLEMS:
        row = {}
        for config in gemm_model.CONFIGS:
            factor = 1.0 + (problem["dtype"] == "f16") * (config["BK"] == 32) + (not problem["causal"]) * 0.01
            row[canonical({**config, "kind": "a" if config["BK"] == 32 else 'b"'})] = factor * gemm_model.time_us(
                problem, config
            )
        costs.append(row)
    return fit_portfolio(Matrix(tuple(PROBLEMS), (1.0,) * len(PROBLEMS), tuple(costs)), 5, 0.0)


def test_the_python_module_chooses_as_the_portfolio(portfolio: Portfolio) -> None:
    """The module imports nothing, and its function returns the config for a problem."""
    names: dict[str, object] = {}
    text = render_python("p:gemm", "H100", portfolio)
    assert "import" not in text
    exec(compile(text, "portfolio.py", "exec"), names)  # the export is code
    choose = names["choose_config"]
    assert callable(choose)
    assert [choose(problem) for problem in NEW] == [portfolio.choose_config(problem) for problem in NEW]


def test_the_json_has_the_configs_and_the_tree(portfolio: Portfolio) -> None:
    """Its leaves name a config by its place among the configs."""
    document = json.loads(render_json("p:gemm", "H100", portfolio))
    assert (document["kernel"], document["device"], document["ktuned_portfolio"]) == ("p:gemm", "H100", 1)
    for problem in NEW[:20]:
        node = document["tree"]
        while "config" not in node:
            figure, limit = node["figure"], node["limit"]
            if figure[0] == "=":
                passes = problem[figure[1]] == limit
            elif figure[0] == "2^":
                number = problem[figure[1]]
                passes = min(128, number & -number) <= limit
            else:
                product = 1
                for name in figure:
                    product *= problem[name]
                passes = product <= limit
            node = node["passing"] if passes else node["failing"]
        assert document["configs"][node["config"]] == portfolio.choose_config(problem)


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_c_header_chooses_as_the_portfolio(portfolio: Portfolio, tmp_path: Path) -> None:
    """The header compiles as C and C++ without a warning, and its function chooses alike."""
    header = render_c("p:gemm", "H100", portfolio)
    (tmp_path / "gemm.h").write_text(header)
    signature = header.partition("gemm_choose(")[2].partition(")")[0]
    fields = [argument.split()[-1].lstrip("*") for argument in signature.split(",")]
    values = {"dtype": '"{}"', "causal": "{}"}
    calls = "".join(
        f'  printf("%lld %lld %lld %lld %s\\n", ({choice})->BM, ({choice})->BN, ({choice})->BK, '
        f"({choice})->stages, ({choice})->kind);\n"
        for problem in NEW
        for choice in [
            "gemm_choose("
            + ", ".join(values.get(name, "{}").format(json.dumps(problem[name]).strip('"')) for name in fields)
            + ")"
        ]
    )
    program = f'#include <stdio.h>\n#include "gemm.h"\nint main(void) {{\n{calls}  return 0;\n}}\n'
    for compiler, options in (("cc", ["-std=c11"]), ("c++", ["-x", "c++", "-std=c++17"])):
        (tmp_path / "main.c").write_text(program)
        command = [compiler, *options, "-Wall", "-Wextra", "-Werror", "-o", "choose", "main.c"]
        subprocess.run(command, cwd=tmp_path, check=True)
        printed = subprocess.run([tmp_path / "choose"], capture_output=True, text=True, check=True).stdout
        expected = [portfolio.choose_config(problem) for problem in NEW]
        assert printed.splitlines() == [
            " ".join(str(config[knob]) for knob in config_order(config)) for config in expected
        ]


def config_order(config: object) -> list[str]:
    """Return the knobs as the program prints them."""
    return ["BM", "BN", "BK", "stages", "kind"]


def test_knobs_that_c_cannot_express_are_refused() -> None:
    """A knob whose values have several types has no field in a struct."""
    one, other = canonical({"a": 1}), canonical({"a": "x"})
    costs = tuple({one: 1.0 + (size > 9), other: 1.0 + (size <= 9)} for size in range(20))
    mixed = fit_portfolio(Matrix(tuple({"N": size} for size in range(20)), (1.0,) * 20, costs), 2, 0.0)
    with pytest.raises(UsageError, match="several types"):
        render_c("p:k", "cpu", mixed)
