"""``@kernel``: what a declaration becomes, and one clear line for each mistake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ktuned.declaration.loader import get_kernel_module
from ktuned.model.errors import KernelFileError, Unsupported
from ktuned.model.plan import Plan
from tests.declaration.conftest import HEADER_LINES, Project

DECORATOR_LINE = HEADER_LINES + 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"bogus": "1"}, "kernel() has no argument 'bogus'"),
        ({"problem": "[]"}, "did you mean 'problems'?"),
        ({"backend": ""}, "backend= is missing"),
        ({"backend": "3"}, "backend= is missing or not a string"),
        ({"space": ""}, "space= is missing"),
        ({"space": "[1]"}, "space= is missing or not made by space(...)"),
        ({"space": "space(BM=[])"}, "the knob BM: it is empty"),
        ({"inputs": "3"}, "inputs= is missing or not a callable"),
        ({"inputs": "", "check": "", "reference": "dict"}, "inputs= is missing"),
        ({"check": ""}, "or check=None to measure without checking"),
        ({"check": "3"}, "check is not callable"),
        ({"check": "lambda outputs: True"}, "check cannot be called with (inputs, outputs): too many positional"),
        ({"reference": "lambda A: {}"}, "check=None turns checking off, but there is a reference"),
        ({"reference": "3", "check": ""}, "reference is not callable"),
        ({"preset": "'quick'"}, "there is no preset 'quick' (there are: fast, default, thorough)"),
        ({"deadlines": "dict(timin=1)"}, "there is no phase 'timin'"),
        ({"deadlines": "dict(timing=0)"}, "timing=0 is not a number of seconds > 0"),
        ({"deadlines": "dict(timing=float('inf'))"}, "timing=inf is not a number of seconds > 0"),
        ({"time_limit_s": "float('nan')"}, "time_limit_s=nan is not a number > 0"),
        ({"rtol": "float('inf')"}, "rtol=inf is not a number >= 0"),
        ({"default": "dict(BM=1, BN=1)"}, "default has no knob 'BN' to set (there are: BM"),
        ({"default": "dict(BM=None)"}, "default: BM=None is of type NoneType"),
        ({"space": "space(BM=[1], BN=[1])", "default": "dict(BM=1)"}, "default must be a full config; it lacks BN"),
        ({"default": "dict(BM=3)"}, "default is outside the space: BM=3 is not a value of the knob BM"),
        ({"default": "dict(BM=True)"}, "default is outside the space: BM=True is not a value of the knob BM"),
        ({"space": "space([dict(BM=1)])", "default": "dict(BM=2)"}, "the space: its list has no BM=2"),
        ({"problems": "[dict(M=1), dict(M=1)]"}, "problem 1 repeats problem 0"),
        ({"problems": "[dict(M=m) for m in range(1001)]"}, "problems has more than 1000"),
        ({"problems": "[dict(M=None)]"}, "problem 0: M=None"),
        ({"problems": "[3]"}, "problem 0 is of type int, not a dict"),
        ({"problems": "[dict(M=1)]", "specialize": "('N',)"}, "specialize names 'N', which problem 0 does not have"),
        ({"problems": "[dict(M=1)]", "bucket": "dict(N='pow2')"}, "bucket names 'N', which problem 0 does not have"),
        ({"specialize": "[3]"}, "specialize must name problem keys"),
        ({"setup": "[3]"}, "setup must name tensors or be a callable"),
        ({"sources": "[3]"}, "sources must be strings"),
        ({"name": "'a b'"}, "the name 'a b' is not letters"),
        ({"rtol": "-1"}, "rtol=-1 is not a number >= 0"),
        ({"atol": "'x'"}, "atol='x' is not a number >= 0"),
        ({"bucket": "dict(M='pow3')"}, "M is 'pow3', not 'pow2', a positive int or a list of ints"),
        ({"bucket": "dict(M=lambda m: m)"}, "not 'pow2', a positive int or a list of ints"),
        ({"bucket": "3"}, "bucket is of type int, not a dict of rules"),
        ({"bucket": "dict(M=[4, 2])"}, "the ends of M are not in ascending order"),
        ({"max_mismatched_ratio": "2"}, "max_mismatched_ratio=2 is not between 0 and 1"),
        ({"seed": "1.5"}, "seed=1.5 is not an int"),
        ({"trials": "0"}, "trials=0 is not an int >= 1"),
        ({"time_limit_s": "0"}, "time_limit_s=0 is not a number > 0"),
        ({"early_stop": "1"}, "early_stop=1 is not a number > 1"),
        ({"strategy": "3"}, "strategy=3 is not a name"),
        ({"objective": "'speed'"}, "there is no objective 'speed'"),
        ({"objective": "3"}, "objective is of type int"),
        ({"objective": "'max:speed'"}, "objective names the metric 'speed', which metrics= lacks"),
        ({"metrics": "dict(energy=lambda p, t: t)"}, "a metric cannot be called 'energy'"),
    ],
)
def test_a_wrong_declaration_names_its_error(project: Project, arguments: dict[str, str], words: str) -> None:
    """Each wrong argument gives one line that starts with the file, the decorator's line and the kernel."""
    loaded = project.load_declaration(**arguments)
    assert loaded.kernels == ()
    (error,) = loaded.errors
    name = "a b" if "name" in arguments else "it"
    assert error.message.startswith(f"{project.root}/tune_it.py:{DECORATOR_LINE}: {name}: ")
    assert words in error.message
    assert "\n" not in error.message
    assert (error.path, error.line) == (f"{project.root}/tune_it.py", DECORATOR_LINE)


def test_a_full_declaration_keeps_every_argument(project: Project) -> None:
    """A plain string stands for one name."""
    kernel = project.declare_kernel(
        sources='"gemm.cu"',
        problems="[dict(M=4, N=1)]",
        specialize='"M"',
        setup='"A"',
        default="dict(BM=2)",
        name='"other"',
        strategy='"exhaustive"',
        seed="3",
        preset='"fast"',
        trials="7",
        time_limit_s="2.5",
        early_stop="2",
        deadlines="dict(timing=4)",
        until='"converged"',
    )
    assert (kernel.name, kernel.file.name, kernel.backend) == ("other", "tune_it.py", "fake")
    assert kernel.source_paths == (project.root / "gemm.cu",)
    assert (kernel.specialize, kernel.setup, kernel.default) == (("M",), ("A",), {"BM": 2})
    assert kernel.list_problems() == ({"M": 4, "N": 1},)
    assert kernel.plan == Plan(
        strategy="exhaustive",
        seed=3,
        preset="fast",
        trials=7,
        time_limit_s=2.5,
        early_stop=2,
        deadlines={"timing": 4},
        until="converged",
    )


def test_the_kernel_function_gets_read_only_views(project: Project) -> None:
    """The kernel function reads problem and config by attribute."""
    kernel = project.declare_kernel()
    assert kernel.build({"M": 1}, {"BM": 2}).to_plain() == {"n": 2}
    assert [config["BM"] for config in kernel.bind_space({"M": 1})] == [1, 2]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("pass", "the kernel function returned nothing; end it with `return Build(…)`"),
        ("return 3", "the kernel function returned a value of type int, not a Build of the backend 'fake'"),
        ("return Fake(c.BX)", "it(p, c): there is no knob 'BX' (there are: BM)"),
        ("return Fake(p.M)", "it(p, c): there is no problem key 'M' (there are: K)"),
        ("return Fake(1 // 0)", "it(p, c): ZeroDivisionError"),
    ],
)
def test_a_failing_kernel_function_is_reported_with_its_line(project: Project, body: str, words: str) -> None:
    kernel = project.load_declaration(body=body).kernels[0]
    with pytest.raises(KernelFileError) as caught:
        kernel.build({"K": 1}, {"BM": 2})
    assert words in caught.value.message
    assert caught.value.line == (DECORATOR_LINE if "returned" in words else DECORATOR_LINE + 2)


def test_a_bare_decorator_is_an_error(project: Project) -> None:
    """The message shows how to write the arguments."""
    project.write_file("tune_it.py", "@kernel\ndef it(p, c):\n    pass\n")
    (error,) = project.load_file().errors
    assert "@kernel takes arguments by name alone: @kernel(backend=…" in error.message


def test_a_build_of_another_backend_is_an_error(project: Project) -> None:
    kernel = project.declare_kernel(backend='"other"')
    with pytest.raises(KernelFileError, match="a Build of the backend 'fake', but backend='other'"):
        kernel.build({}, {"BM": 1})


def test_unsupported_from_a_kernel_function_is_raised_unchanged(project: Project) -> None:
    """A kernel function may refuse a config."""
    kernel = project.load_declaration(body='raise Unsupported("too large")').kernels[0]
    with pytest.raises(Unsupported, match="too large"):
        kernel.build({}, {"BM": 1})


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ("lambda: {}", "takes 0 positional arguments but 1 was given; it is called with (p)"),
        ("lambda p: 3", "inputs(p) returned a value of type int, not a dict of tensors by name"),
        ("lambda p: {}", "inputs(p) returned an empty dict; it must name"),
        ("lambda p: dict(B=3)", "inputs(p): B is of type int, not a tensor(...), a torch.Tensor or a numpy.ndarray"),
        ("lambda p: dict(A=tensor(p.M))", "inputs(p): there is no problem key 'M'"),
        ("lambda p: dict(A=tensor(-1))", "inputs(p): tensor: the shape"),
        ("lambda p: dict(B=tensor(1))", "setup names the tensor 'A', which inputs(p) does not make (there are: B"),
    ],
)
def test_failing_inputs_are_reported_in_one_line(project: Project, inputs: str, words: str) -> None:
    kernel = project.declare_kernel(inputs=inputs, setup='("A",)')
    with pytest.raises(KernelFileError) as caught:
        kernel.evaluate_inputs({"K": 1})
    assert words in caught.value.message


def test_inputs_may_be_real_tensors(project: Project) -> None:
    kernel = project.declare_kernel(inputs='lambda p: dict(A=__import__("torch").ones(3))')
    assert kernel.evaluate_inputs({})["A"].shape == (3,)


@pytest.mark.parametrize(
    ("problems", "words"),
    [
        ("lambda: [dict(M=1), dict(M=1)]", "problem 1 repeats problem 0"),
        ("lambda: [dict(N=1)]", "specialize names 'M', which problem 0 does not have"),
        ("lambda: 1 / 0", "problems(): ZeroDivisionError"),
        ("lambda: (dict(M=m) for m in iter(int, 1))", "problems has more than 1000"),
    ],
)
def test_a_problems_callable_is_checked_when_it_is_called(project: Project, problems: str, words: str) -> None:
    kernel = project.declare_kernel(problems=problems, specialize='"M"')
    with pytest.raises(KernelFileError) as caught:
        kernel.list_problems()
    assert words in caught.value.message


def test_a_generator_function_may_declare_the_problems(project: Project) -> None:
    kernel = project.declare_kernel(problems="lambda: (dict(M=m) for m in (1, 2))")
    assert kernel.list_problems() == ({"M": 1}, {"M": 2})


def test_the_declaration_api_imports_no_heavy_package() -> None:
    """Importing ktuned imports ktuned and the standard library only, no torch and no event loop."""
    script = """
import sys
before = set(sys.modules)
import ktuned
foreign = {name.partition(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names) - {"ktuned"}
print(sorted(name for name in foreign if not name.startswith("__editable__")))
"""
    process = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=Path.cwd())
    assert process.stdout.strip() == "[]"


def test_a_build_may_read_the_layouts_of_its_tensors(project: Project) -> None:
    """A Build gets dtype, shape and strides by name. ``inputs`` is called once per problem, not per config."""
    path = project.write_file(
        "tune_it.py",
        """
        import torch

        class Noting(Fake):
            def given(self, layouts):
                noted.append(layouts())
                return Fake(self.n + 1)

        noted, called = [], []

        def inputs(p):
            called.append(p.M)
            return dict(A=tensor((2, p.M), "float16"), B=torch.zeros(3, 4).t())

        @kernel(backend="fake", space=space(BM=[1, 2]), inputs=inputs, check=None)
        def it(p, c):
            return Noting(c.BM)
        """,
    )
    (kernel,) = project.load_file().kernels
    builds = [kernel.build({"M": m}, {"BM": n}).to_plain()["n"] for m, n in ((5, 1), (5, 2), (6, 2))]
    module = get_kernel_module(path)
    assert builds == [2, 3, 3]
    assert module.called == [5, 6]
    assert module.noted[0] == {"A": ("float16", (2, 5), (5, 1)), "B": ("float32", (4, 3), (1, 4))}


@pytest.mark.parametrize(
    ("name", "message_part"),
    [
        ("'n' * 201", "the name has 201 characters"),
        ("'a\\nb'", "a b: the name 'a\\nb' is not letters"),
        ("'a\\udcff'", "a\\udcff: the name"),
    ],
)
def test_any_invalid_kernel_name_is_reported_in_one_line(project: Project, name: str, message_part: str) -> None:
    (error,) = project.load_declaration(name=name).errors
    assert message_part in error.message
    assert "\n" not in error.message.encode().decode()
