"""The tilelang backend: the conformance suite, and its own features."""

import itertools
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgpack
import pytest
import tilelang
import tilelang.language as T

from ktuned.backends import Compiled, Registry
from ktuned.model import BackendError, Outcome, Unsupported
from ktuned.testing.backends import check_backend
from ktuned_tilelang import Build, TileLang, TileLangKernel, autotune, precompiled
from ktuned_tilelang.artifact import load_kernel, read_recipe
from ktuned_tilelang.execution import CODE_FILES
from ktuned_tilelang.recipe import Recipe
from tests.tilelang import bad, kernels
from tests.tilelang.kernels import EXAMPLE, SIZE, make_build

HUGE_TILE = {"size": 1024, "block": 256, "depth": 256, "stages": 3}

CompileOne = Callable[..., tuple[Compiled, Path]]


@pytest.fixture
def compile_one(tmp_path: Path) -> CompileOne:
    """Return a function that compiles a Build into a new directory."""
    numbers = itertools.count()

    def compile_one(build: Build, target: str = "sm_90a") -> tuple[Compiled, Path]:
        key = f"unit{next(numbers)}"
        (tmp_path / key).mkdir()
        (result,) = TileLang().compile([EXAMPLE.unit(key, build, target)], tmp_path)
        return result, tmp_path / key

    return compile_one


def test_the_backend_passes_the_conformance_suite(tmp_path: Path) -> None:
    """The entry point's class passes the conformance suite, without a GPU up to the point where loading needs one."""
    check_backend(Registry().load("tilelang"), EXAMPLE, tmp_path)


class TestStyles:
    """Every way to write a TileLang kernel."""

    @pytest.mark.parametrize("function", ["make_program", "eager"])
    def test_all_styles_give_the_same_code(self, function: str, compile_one: CompileOne) -> None:
        """The styles are a function that returns a program, and the eager style."""
        result, artifact = compile_one(make_build(function))
        assert result.outcome is None, result.message
        assert result.facts["registers"] == 18
        assert read_recipe(artifact).parameters == ("x", "y")

    def test_headers_are_precompiled_once(self, compile_one: CompileOne) -> None:
        """Without a directory of its own, NVRTC would try and fail at each compilation."""
        compile_one(make_build("scale"))
        (option,) = precompiled.make_options()
        directory = Path(option.removeprefix("-pch-dir="))
        headers = {path.name: path.stat().st_mtime_ns for path in directory.iterdir()}
        assert headers
        result, _ = compile_one(make_build("scale", block=512))
        assert result.outcome is None, result.message
        assert {path.name: path.stat().st_mtime_ns for path in directory.iterdir()} == headers

    def test_symbolic_shapes_are_compiled_once(self, compile_one: CompileOne) -> None:
        """The size is a parameter of the machine code; the output index is recorded."""
        result, artifact = compile_one(make_build("scale_any", dtype=T.float16))
        assert result.outcome is None, result.message
        assert read_recipe(artifact).out_idx == (1,)
        assert "int size" in (artifact / "device_kernel.cu").read_text()


class TestExecutionBackends:
    """An artifact holds what its execution backend loads, and no pickle."""

    def test_tvm_ffi_is_loaded_by_tilelang_itself(self, compile_one: CompileOne) -> None:
        """The artifact holds the library, the sources and JSON; loading needs no GPU."""
        result, artifact = compile_one(make_build("scale_any", "auto"))
        assert result.outcome is None, result.message
        recipe = read_recipe(artifact)
        assert recipe.execution_backend == "tvm_ffi"
        names = {path.name for path in artifact.iterdir()}
        assert names == {*CODE_FILES["tvm_ffi"], *TileLang.required_files}
        kernel = load_kernel(artifact, recipe, recipe.out_idx)
        assert kernel.out_idx == [1]
        assert kernel.get_kernel_source() == (artifact / "device_kernel.cu").read_text()
        with pytest.raises(KeyError, match="there are: none"):
            TileLangKernel(load_kernel(artifact, recipe, ()), recipe, None).bind({})

    @pytest.mark.filterwarnings("default::DeprecationWarning")  # CUTLASS's, of itself
    @pytest.mark.parametrize(("name", "needed"), [("cython", "torch"), ("cutedsl", "cutlass")])
    def test_launchers_are_linked_without_a_driver(self, name: str, needed: str, compile_one: CompileOne) -> None:
        """A stand-in for the driver's library is there while launchers are linked; the artifact holds all that
        loading needs.
        """
        if find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
        result, artifact = compile_one(make_build("scale", name))
        assert result.outcome is None, result.message
        assert result.facts["registers"] == 18
        assert {entry.name for entry in artifact.iterdir()} >= set(read_recipe(artifact).code_files)

    def test_an_unknown_execution_backend_is_named(self) -> None:
        """The message lists the execution backends."""
        with pytest.raises(ValueError, match="no execution backend 'quantum': give one of auto, tvm_ffi, nvrtc"):
            make_build("scale", "quantum")

    def test_an_unknown_execution_backend_in_the_environment_is_named(
        self, compile_one: CompileOne, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """TileLang's variable decides if the Build does not."""
        monkeypatch.setenv("TILELANG_EXECUTION_BACKEND", "quantum")
        result, _ = compile_one(make_build("scale", "auto"))
        assert result.outcome is Outcome.COMPILE_ERROR
        assert "no execution backend 'quantum'" in result.message

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        """So is an execution backend of another version."""
        recipe = Recipe("0.1.15", "main", "sm_90a", {"kind": "cuda"}, "nvrtc", ("x",), ())
        (tmp_path / "kernel.json").write_text(recipe.to_json())
        with pytest.raises(Unsupported, match=r"the artifact has no kernel\.cubin, kernel\.py, which"):
            read_recipe(tmp_path)
        (tmp_path / "kernel.json").write_text(replace(recipe, execution_backend="later").to_json())
        with pytest.raises(Unsupported, match="'later', which is unknown"):
            read_recipe(tmp_path)


class TestBadInputs:
    """Each bad input gives an outcome of its own, or one clear line."""

    @pytest.mark.parametrize(
        ("build", "outcome", "words"),
        [
            (make_build(fault="name"), Outcome.COMPILE_ERROR, "NameError: name 'missing_name' is not defined"),
            (make_build(missing=1), Outcome.COMPILE_ERROR, "unexpected keyword argument 'missing'"),
            (Build("absent"), Outcome.COMPILE_ERROR, "there is no function 'absent'"),
            (
                Build("return_no_program", {"size": 1}),
                Outcome.COMPILE_ERROR,
                "return_no_program returns a int, not a T.prim_func",
            ),
            (make_build(threads=4096), Outcome.UNSUPPORTED, "a block has 4096 threads; sm_90a allows 1024"),
            (
                Build("product", HUGE_TILE, execution_backend="nvrtc"),
                Outcome.UNSUPPORTED,
                "bytes of shared memory; sm_90a has 232448",
            ),
            (make_build("scale", "torch"), Outcome.UNSUPPORTED, "'torch' is not for CUDA"),
            (replace(make_build(), target="hip"), Outcome.UNSUPPORTED, "the target 'hip' is not for CUDA"),
            (
                replace(make_build(), target={"kind": "cuda", "arch": "sm_80"}),
                Outcome.UNSUPPORTED,
                "the Build's target is",
            ),
            (replace(make_build("scale_any"), out_idx=2), Outcome.COMPILE_ERROR, "out_idx is 2, and the kernel has 2"),
            (
                replace(make_build(), args=("x",)),
                Outcome.COMPILE_ERROR,
                "args has 1 of 2 values; the kernel takes x, y",
            ),
            (replace(make_build(), args=("x", "z")), Outcome.COMPILE_ERROR, "the tensor 'z'; inputs makes x, y"),
            (make_build("scale", dtype="float31"), Outcome.COMPILE_ERROR, "InternalError: Check failed: data_bits % 8"),
            (Build(program="missing.json"), Outcome.COMPILE_ERROR, "the program missing.json cannot be read"),
        ],
    )
    def test_each_bad_config_has_its_outcome(
        self, build: Build, outcome: Outcome, words: str, compile_one: CompileOne
    ) -> None:
        """The first line of the message says what is wrong."""
        result, _ = compile_one(build)
        assert (result.outcome, words in result.message.splitlines()[0]) == (outcome, True), result.message

    @pytest.mark.parametrize("mode", ["endless", "illegal", "wrong"])
    def test_configs_whose_fault_only_a_launch_shows_compile(self, mode: str, compile_one: CompileOne) -> None:
        """No compiler notices an endless loop, a bad address or a wrong result; only a launch on a GPU does."""
        result, _ = compile_one(Build(bad.bad, {"size": SIZE, "mode": mode}, execution_backend="nvrtc"))
        assert result.outcome is None, result.message

    def test_a_missing_tilelang_is_one_line_with_its_remedy(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "tilelang", None)
        with pytest.raises(BackendError, match="TileLang cannot be imported: ") as caught:
            TileLang().prepare()
        assert "pip install 'tilelang" in caught.value.hint

    def test_what_cannot_travel_is_refused_where_it_is_written(self) -> None:
        """Examples: a value, a closure, an autotuned function, an argument."""
        with pytest.raises(TypeError, match="the argument block is a object"):
            make_build(block=object())
        with pytest.raises(ValueError, match="is inside another function"):
            Build(make_closure())
        autotuned = tilelang.autotune(configs=[{"block": 64}])(kernels.scale)
        with pytest.raises(TypeError, match=r"decorated with tilelang\.autotune"):
            Build(autotuned)
        with pytest.raises(TypeError, match=r"args\[0\] is \[\], not bool"):
            Build("scale", args=([],))  # type: ignore[arg-type]

    def test_other_architectures_and_versions_are_not_loaded(self, compile_one: CompileOne) -> None:
        """TileLang does not compile for a CPU here, and an artifact names the version that made it."""
        result, _ = compile_one(make_build(), "cpu")
        assert (result.outcome, "not for cpu" in result.message) == (Outcome.UNSUPPORTED, True)
        recipe = Recipe("0.2.0", "main", "sm_90a", {"kind": "cuda"}, "nvrtc", ("x",), ())
        with pytest.raises(Unsupported, match=r"compiled by TileLang 0\.2\.0, and 0\.1\.15 is installed"):
            load_kernel(Path(), recipe, ())

    def test_an_unsupported_tilelang_is_one_line(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The line replaces a traceback both where TileLang compiles and where an application decorates."""
        for version in ("0.2.0", "0.1.14+cu128.git0", "0.1"):
            monkeypatch.setattr(tilelang, "__version__", version)
            message = f"TileLang {re.escape(version)} is installed; this plugin supports 0.1, from 0.1.15 on"
            with pytest.raises(BackendError, match=message):
                list(TileLang().compile([], tmp_path))
            with pytest.raises(ImportError, match=message):
                autotune(configs=[{"block": 1}])

    def test_args_are_as_many_as_parameters(self) -> None:
        recipe = Recipe("0.1.15", "main", "sm_90a", {}, "nvrtc", ("x", "y"), ())
        with pytest.raises(ValueError, match="args has 1 of 2 values; main takes x, y"):
            TileLangKernel(None, recipe, ("x",))


class TestTravel:
    """A Build is plain data and equal after its travel."""

    def test_values_are_equal_after_their_travel(self) -> None:
        """This covers dtypes, enums and tuples."""
        build = Build(
            kernels.product,
            {"policy": T.GemmWarpPolicy.FullRow, "dtype": T.float16, "tiles": (1, 2)},
            pass_configs={tilelang.PassConfigKey.TL_ENABLE_FAST_MATH: True},
            compile_flags="-O3",
        )
        travelled = Build.from_plain(msgpack.unpackb(msgpack.packb(build.to_plain())))
        assert travelled == build
        assert json.dumps(travelled.to_plain())

    def test_a_function_gets_the_dtypes_and_enums_themselves(self) -> None:
        from ktuned_tilelang.values import from_plain, to_plain

        for value in (T.GemmWarpPolicy.FullRow, T.float16, (1, None), "text"):
            travelled: Any = from_plain(to_plain("value", value))
            assert travelled == value
            assert type(travelled) is type(value)


def make_closure() -> Any:
    def inner(size: int) -> int:
        return size + SIZE

    return inner
