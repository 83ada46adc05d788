"""Problem files in KernelBench's format become kernel files, whose candidates are right, wrong or neither."""

import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from ktuned_torch import load_problem, write_task_files
from ktuned_torch.problem_file import Argument
from tests.e2e.harness import Daemon

PAGE = Path(__file__).parent.parent.parent / "docs" / "judge.md"

UNIFORM = {"low": 0.0, "high": 1.0}

PROBLEMS = Path(__file__).parent.parent / "fixtures" / "problems"

CPP = {
    "40_LayerNorm": """
  const int64_t n = x.size(1) * x.size(2);
  for (int64_t row = 0; row < x.size(0); ++row) {
    const float* from = in(x) + row * n;
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; ++i) sum += from[i], squares += double(from[i]) * from[i];
    const double mean = sum / n, scale = 1 / std::sqrt(squares / n - mean * mean + 1e-5);
    for (int64_t i = 0; i < n; ++i)
      to(out)[row * n + i] = (from[i] - mean) * scale * in(ln_weight)[i] + in(ln_bias)[i];
  }
""",
    "96_HuberLoss": """
  double sum = 0;
  for (int64_t i = 0; i < predictions.numel(); ++i) {
    const double d = std::abs(in(predictions)[i] - in(targets)[i]);
    sum += d < 1 ? d * d / 2 : d - 0.5;
  }
  *to(out) = sum / predictions.numel();
""",
}
"""The bodies of right candidates in C++, by problem."""

PYTHON = {
    "1_Matmul": "torch.matmul(A, B, out=out)",
    "50_Conv2D": "out.copy_(torch.conv2d(x, conv1_weight, conv1_bias, stride=2, padding=2))",
}
"""The bodies of right candidates in Python, by problem."""

HELPERS = """
#include <cmath>

static const float* in(const TensorView& tensor) { return static_cast<const float*>(tensor.data_ptr()); }
static float* to(const TensorView& tensor) { return static_cast<float*>(tensor.data_ptr()); }
"""


def fill_in(candidate: Path, body: str) -> None:
    """Write a body into a candidate that does nothing yet."""
    text = candidate.read_text()
    if candidate.suffix == ".cc":
        text = text.replace("using tvm::ffi::TensorView;\n", f"using tvm::ffi::TensorView;\n{HELPERS}")
        text = text.replace(" {\n}", f" {{{body}}}")
    else:
        text = f"import torch\n\n{text}    {body}\n"
    candidate.write_text(text)


@pytest.fixture
def problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a directory with the problem files, whose modules are forgotten after the test."""
    directory = tmp_path / "problems"
    shutil.copytree(PROBLEMS, directory, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.syspath_prepend(directory)
    known = set(sys.modules)
    yield directory
    for name in set(sys.modules) - known:
        if name in {path.stem for path in directory.glob("*.py")}:
            del sys.modules[name]


@pytest.mark.usefixtures("problems")
def test_the_arguments_are_inputs_parameters_and_outputs() -> None:
    assert load_problem("40_LayerNorm").describe_arguments() == [
        Argument("x", "float32", (4, 8, 32), fill=UNIFORM, is_input=True),
        Argument("ln_weight", "float32", (8, 32)),
        Argument("ln_bias", "float32", (8, 32)),
        Argument("out", "float32", (4, 8, 32), is_output=True),
    ]
    assert load_problem("scale_and_sum").describe_arguments() == [
        Argument("x", "float32", (8, 100), fill=UNIFORM, is_input=True),
        Argument("factor", value=2.5, is_input=True),
        Argument("out0", "float32", (8, 100), is_output=True),
        Argument("out1", "int64", (8,), is_output=True),
    ]
    # A distribution checks its parameters, which tensors without content do not survive.
    assert load_problem("96_HuberLoss").describe_arguments()[-1] == Argument("out", "float32", (), is_output=True)


@pytest.mark.usefixtures("problems")
def test_the_reference_computes_with_the_parameters_that_are_inputs() -> None:
    """Each call of the inputs draws other numbers, also for the model's parameters."""
    problem = load_problem("50_Conv2D")
    one, other = (problem.make_inputs("x", "conv1_weight", "conv1_bias") for _ in range(2))
    assert not any(value.requires_grad for value in one.values())
    for tensors in (one, other, one):
        expected = torch.conv2d(tensors["x"], tensors["conv1_weight"], tensors["conv1_bias"], stride=2, padding=2)
        assert torch.equal(problem.run_reference(tensors)["out"], expected)
    assert not any(torch.equal(one[name], other[name]) for name in one)


def test_tolerances_are_the_file_s_or_those_of_half_precision(problems: Path) -> None:
    half = "import torch\ndef reference(x): return x.bfloat16()\ndef get_inputs(): return [torch.ones(3)]\n"
    (problems / "half.py").write_text(half)
    found = {name: load_problem(name) for name in ("1_Matmul", "50_Conv2D", "half")}
    read = {name: problem.read_tolerances(problem.describe_arguments()) for name, problem in found.items()}
    assert read == {"1_Matmul": {}, "50_Conv2D": dict(rtol=1e-3, atol=1e-3), "half": dict(rtol=1e-2, atol=1e-2)}


def test_only_inputs_that_are_drawn_by_one_call_are_declared(problems: Path) -> None:
    """Others come from the problem file each time."""
    lines = ["import torch", "def reference(a, b, c, d, e): return a + 1", "def get_inputs():"]
    lines += ["    a, b, c = torch.randn(3), torch.randint(5, (2,)), torch.randint(1, 7, (2,))"]
    lines += ["    return [a, b, c, torch.rand(2) * 2, torch.rand(2).neg_()]"]
    (problems / "drawn.py").write_text("\n".join(lines))
    fills = [one.fill for one in load_problem("drawn").describe_arguments()]
    integers = [{"fill": "integer", "low": low, "high": high} for low, high in ((0, 5), (1, 7))]
    assert fills == [{"fill": "normal"}, *integers, {}, {}, {}]
    (task,) = (task for task in write_task_files(problems, "c++") if task.problem == "drawn")
    text = (problems / task.kernel_file).read_text()
    assert 'load_problem("drawn").make_inputs("d", "e"),' in text
    assert 'b=tensor((2,), "int64", fill="integer", low=0, high=5),' in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def get_inputs(): return []", "defines get_inputs, and Model or reference"),
        ("import no_such_module\ndef get_inputs(): return []", "no_such_module"),
        ("def reference(x): return x\ndef get_inputs(): return ['a word']", "of type str; a candidate takes only"),
        ("def reference(x): return x.no_such\ndef get_inputs(): return [1]", "no_such"),
        ("def reference(out): return out\ndef get_inputs(): return [torch.ones(1)]\nimport torch", "the name out"),
    ],
)
def test_a_problem_file_that_fails_does_not_keep_the_others_from_being_written(
    problems: Path, text: str, message: str
) -> None:
    (problems / "broken.py").write_text(text)
    (problems / "no_problem.py").write_text("x = (\n")
    tasks = write_task_files(problems, "c++")
    assert [task.problem for task in tasks if task.error] == ["broken"]
    (error,) = (task.error for task in tasks if task.error)
    assert message in error
    assert len(list(problems.glob("tune_*.py"))) == len(list(problems.glob("candidate_*.cc"))) == 6


def test_a_task_that_exists_is_left_as_it_is(problems: Path) -> None:
    assert all(task.is_new for task in write_task_files(problems, "python"))
    before = {path: path.read_bytes() for path in problems.iterdir() if path.is_file()}
    assert not any(task.is_new for task in write_task_files(problems, "c++"))
    assert {path: path.read_bytes() for path in problems.iterdir() if path.is_file()} == before


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    # A busy machine must not make a candidate hang.
    config = "[deadlines]\nfirst_launch = 100.0\ntiming = 100.0\n"
    directory, env = tmp_path_factory.mktemp("judge"), {"OMP_NUM_THREADS": "1"}
    with Daemon(directory, tensors="torch", env=env, config=config) as process:
        yield process


@pytest.mark.parametrize(("language", "bodies"), [("c++", CPP), ("python", PYTHON)])
def test_candidates_are_judged_as_they_are(
    judge: Daemon, language: str, bodies: dict[str, str], tmp_path: Path
) -> None:
    """A candidate is wrong while it does nothing, and then right."""
    directory = tmp_path / f"problems_{language.strip('+')}"
    shutil.copytree(PROBLEMS, directory, ignore=shutil.ignore_patterns("__pycache__"))
    made = judge.run_ktuned("judge", "--init", str(directory), "--language", language, "--json")
    assert (made.returncode, made.stderr) == (0, "")
    tasks: list[dict[str, Any]] = json.loads(made.stdout)["tasks"]
    tasks = [task for task in tasks if task["problem"] in bodies]
    assert len(tasks) == len(bodies)
    assert find_verdict(judge, directory / tasks[0]["kernel_file"])[0] == "wrong"
    for task in tasks:
        fill_in(directory / task["candidate"], bodies[task["problem"]])
    found = {task["problem"]: find_verdict(judge, directory / task["kernel_file"]) for task in tasks}
    assert {problem: reason for problem, (verdict, reason) in found.items() if verdict != "right"} == {}


def find_verdict(judge: Daemon, path: Path) -> tuple[str, str]:
    (candidate,) = judge.client.judge(path=path, quick=True)["candidates"]
    return candidate["verdict"], candidate["reason"]


def test_a_candidate_in_python_is_not_imported_where_it_is_compiled(judge: Daemon, tmp_path: Path) -> None:
    """The compile worker only reads it; a wrong syntax is an error of the compiler with its line."""
    (tmp_path / "scale_and_sum.py").write_text((PROBLEMS / "scale_and_sum.py").read_text())
    (task,) = write_task_files(tmp_path, "python")
    candidate = tmp_path / task.candidate
    candidate.write_text("def candidate(x, factor, out0, out1):\n    return return\n")
    job = judge.tune_one(path=tmp_path / task.kernel_file)
    assert f"{candidate.name}:2: SyntaxError: invalid syntax" in job["message"]
    imported = tmp_path / "imported"
    candidate.write_text(f"import os\nos.mkdir({str(imported)!r})\ndef candidate(x, factor, out0, out1): pass\n")
    (begun,) = judge.client.call("compile", path=str(tmp_path / task.kernel_file))["jobs"]

    def is_compiled() -> bool:
        (job,) = judge.client.call("jobs", job=begun["id"])["jobs"]
        return bool(job["outcomes"] == {"compiled": 1})

    judge.wait_until(is_compiled, "the compile")
    assert not imported.exists()


SOFTMAX = """
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
#include <cmath>

void candidate(tvm::ffi::TensorView x, tvm::ffi::TensorView out) {
  const float* from = static_cast<const float*>(x.data_ptr());
  float* into = static_cast<float*>(out.data_ptr());
  for (int64_t row = 0; row < x.size(0); ++row, from += x.size(1), into += x.size(1)) {
    float sum = 0;
    for (int64_t i = 0; i < x.size(1); ++i) sum += into[i] = std::exp(from[i]);
    for (int64_t i = 0; i < x.size(1); ++i) into[i] /= sum;
  }
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(candidate, candidate);
"""


class Model(ThreadingHTTPServer):
    """A model that gives prepared answers, and keeps the conversation."""

    def __init__(self, answers: list[str]) -> None:
        super().__init__(("127.0.0.1", 0), ModelHandler)
        self.answers = answers
        self.messages: list[dict[str, str]] = []


class ModelHandler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Model)
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.messages = asked["messages"]
        content = self.server.answers[len(asked["messages"]) // 2]
        answer = json.dumps({"choices": [{"message": {"role": "assistant", "content": content}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_the_agent_of_the_documentation_finds_the_right_candidate(judge: Daemon, tmp_path: Path) -> None:
    """It reports errors and wrong outputs to its model, and leaves the best candidate in its file."""
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    problems = tmp_path / "problems"
    problems.mkdir()
    (problems / "softmax.py").write_text((PROBLEMS / "23_Softmax.py").read_text())
    assert judge.run_ktuned("judge", "--init", str(problems)).returncode == 0
    broken, wrong = SOFTMAX.replace("float sum = 0;", "float sum = 0"), SOFTMAX.replace("std::exp", "std::sin")
    answers = [f"Here it is:\n\n```cpp{source}```\nIt is fast." for source in (broken, wrong, SOFTMAX, wrong)]
    with Model(answers) as model:
        serving = threading.Thread(target=model.serve_forever)
        serving.start()
        url = f"http://127.0.0.1:{model.server_port}/v1/chat/completions"
        env = {**judge.env, "MODEL_URL": url, "MODEL": "any", "ATTEMPTS": "4"}
        done = subprocess.run(
            [sys.executable, "-c", program], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=250
        )
        model.shutdown()
        serving.join()
    assert done.returncode == 0, done.stderr
    verdicts = [line.split()[1] for line in done.stdout.splitlines()]
    assert verdicts == ["compile_error", "wrong", "right", "wrong"], done.stdout
    reports = [json.loads(message["content"]) for message in model.messages[2::2]]
    assert reports[0]["errors"][0]["file"] == "candidate_softmax.cc"
    assert (problems / "candidate_softmax.cc").read_text().strip() == SOFTMAX.strip()


def test_the_agent_has_thirty_lines() -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len([line for line in program.splitlines() if line]) <= 30
