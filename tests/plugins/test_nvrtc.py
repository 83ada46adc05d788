"""The nvrtc backend without a device: the conformance suite, and its own features."""

import itertools
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ktuned.backends import MAX_MESSAGE_CHARS, cuda_headers, move_error_first, ptxas
from ktuned.backends.contract import Absence, Absent, Compiled, Unit
from ktuned.backends.registry import Registry
from ktuned.ipc.manifest import digest_file
from ktuned.model.device import Device
from ktuned.model.errors import BackendError, Unsupported
from ktuned.model.keys import DeviceModel, DeviceName, Target
from ktuned.model.values import Outcome
from ktuned.testing.backends import check_backend
from ktuned_nvrtc import Build, Nvrtc, precompiled, program
from tests.plugins.examples_on_gpus import run_python
from tests.plugins.scale import EXAMPLE, SOURCE

TARGET = "sm_90a"

Compile = Callable[..., tuple[Compiled, Path]]
CompileGroup = Callable[..., tuple[dict[str, Compiled], Path]]


def make_instance_build(tile: int, **more: object) -> Build:
    """Return a Build of one instance of the example."""
    return Build(f"scale<float, {tile}>", **more)  # type: ignore[arg-type]


@pytest.fixture
def compile_group(tmp_path: Path) -> CompileGroup:
    """Return a function that compiles Builds by name as one group into a new directory."""
    numbers = itertools.count()

    def compile_group(
        builds: Mapping[str, Build], *sources: Path, target: str = TARGET
    ) -> tuple[dict[str, Compiled], Path]:
        into = tmp_path / f"group{next(numbers)}"
        units = [Unit(key, build, sources or (SOURCE,), SOURCE, "scale", target) for key, build in builds.items()]
        for unit in units:
            (into / unit.key).mkdir(parents=True)
        return {result.key: result for result in Nvrtc().compile(units, into)}, into

    return compile_group


@pytest.fixture
def compile_one(compile_group: CompileGroup) -> Compile:
    """Return a function that compiles one Build of some sources into a new directory."""

    def compile_one(build: Build | None = None, *sources: Path, target: str = TARGET) -> tuple[Compiled, Path]:
        results, into = compile_group({"unit": build or make_instance_build(2)}, *sources, target=target)
        return results["unit"], into / "unit"

    return compile_one


def test_the_backend_passes_the_conformance_suite(tmp_path: Path) -> None:
    """Without a device, the suite ends where loading needs one."""
    check_backend(Registry().load("nvrtc"), EXAMPLE, tmp_path)


def test_describing_and_compiling_imports_neither_torch_nor_numpy(tmp_path: Path) -> None:
    """Compile workers stay small: devices, fingerprint and compilation need no library that runs kernels."""
    code = """if True:
        import sys
        from pathlib import Path
        from ktuned.backends import Unit
        from ktuned_nvrtc import Build, Nvrtc
        backend, source, into = Nvrtc(), Path(sys.argv[1]), Path(sys.argv[2])
        backend.fingerprint(), backend.devices()
        (into / "key").mkdir()
        (result,) = backend.compile([Unit("key", Build("scale<int, 1>"), (source,), source, "scale", "sm_90a")], into)
        assert result.outcome is None, result.message
        print(sorted({"torch", "numpy"} & sys.modules.keys()))
    """
    assert run_python(code, str(SOURCE), str(tmp_path)) == "[]"


class TestArtifact:
    """What an artifact holds and what its facts are."""

    def test_an_artifact_says_how_to_launch_the_kernel(self, compile_one: Compile) -> None:
        """``kernel.json`` has the symbol and the sizes: an application needs nothing else to launch the kernel."""
        _, artifact = compile_one(make_instance_build(4, grid=(7, 2), block=(64,), shared_bytes=1024, cluster=(1, 2)))
        assert json.loads((artifact / "kernel.json").read_text()) == {
            "entry": "scale<float, 4>",
            "lowered": "_Z5scaleIfLi4EEvPKT_PS0_S0_i",
            "target": TARGET,
            "grid": [7, 2, 1],
            "block": [64, 1, 1],
            "cluster": [1, 2, 1],
            "shared_bytes": 1024,
        }
        assert b"_Z5scaleIfLi4EEvPKT_PS0_S0_i" in (artifact / "kernel.cubin").read_bytes()

    def test_an_artifact_holds_the_sources_and_the_quoted_headers(self, compile_one: Compile) -> None:
        """``sources/`` has the user's files, but none of CUDA's."""
        _, artifact = compile_one()
        assert sorted(path.name for path in (artifact / "sources").iterdir()) == ["scale.cu", "scale.cuh"]

    @pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_90a", "sm_100a"])
    def test_the_machine_code_is_for_the_target(self, target: str, compile_one: Compile) -> None:
        """No GPU is needed."""
        _, artifact = compile_one(target=target)
        assert re.search(rf"-arch {target}\W".encode(), (artifact / "kernel.cubin").read_bytes())

    def test_the_facts_are_the_resources(self, compile_one: Compile, tmp_path: Path) -> None:
        """The assembler reports registers, stack, spills and static shared memory."""
        source = tmp_path / "resources.cu"
        source.write_text("""
            __global__ void k(int* out) {
              __shared__ int shared[1024];
              int local[100];
              for (int i = 0; i < 100; ++i) local[i] = out[i];
              shared[threadIdx.x] = local[out[threadIdx.x]];
              __syncthreads();
              *out = shared[out[1]];
            }
        """)
        result, _ = compile_one(Build("k"), source)
        assert result.facts["static_shared_bytes"] == 4096
        assert result.facts["stack_bytes"] == 400
        assert result.facts["spill_store_bytes"] == 0
        assert 8 <= result.facts["registers"] <= 255
        assert 0.0 < result.facts["occupancy"] <= 1.0

    def test_registers_that_do_not_fit_are_spilled_and_reported(self, compile_one: Compile, tmp_path: Path) -> None:
        """The report is for the options of the config."""
        source = tmp_path / "spilling.cu"
        sum_of_terms = " + ".join(f"x[{i}] * x[{i} + threadIdx.x]" for i in range(64))
        loads = "".join(f"float v{i} = x[{i} * 97];" for i in range(64))
        uses = "".join(f"x[{i} * 89] = v{i} * s;" for i in range(64))
        source.write_text(
            f"__global__ void k(float* x) {{ {loads} float s = {sum_of_terms}; __syncthreads(); {uses} }}"
        )
        result, _ = compile_one(Build("k", flags=("-maxrregcount=24",)), source)
        assert result.facts["registers"] <= 24
        assert result.facts["spill_store_bytes"] > 0

    def test_a_log_of_several_kernels_is_separated_by_kernel(self) -> None:
        """Functions that were not inlined have reports of their own, which are not the kernel's."""
        log = """
ptxas info    : Compiling entry function 'first' for 'sm_90a'
ptxas info    : Function properties for first
ptxas         .     8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 77 registers, used 1 barriers, 4096+16 bytes smem
ptxas info    : Function properties for helper
ptxas         .     96 bytes stack frame, 1 bytes spill stores, 1 bytes spill loads
ptxas info    : Compiling entry function 'second' for 'sm_90a'
ptxas info    : Function properties for second
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
"""
        assert ptxas.parse(log) == {
            "first": ptxas.Resources(77, 8, 4, 12, 4096),
            "second": ptxas.Resources(registers=8),
        }


class TestSameBytes:
    """Equal meaning gives equal bytes, so that a recompilation that changes nothing is recognised."""

    def test_equal_sources_give_equal_bytes_wherever_they_are(self, compile_one: Compile, tmp_path: Path) -> None:
        """The bytes depend on neither the directory, the order of defines, __FILE__ nor internal names."""
        text = '#include "more.cuh"\n__global__ void k(const char** out) { *out = file(); }'
        header = "namespace { __device__ int hidden[4]; }\n"
        header += "inline __device__ const char* file() { return ++hidden[1] ? __FILE__ : nullptr; }"
        cubins = []
        for directory_name, defines in (("here", {"A": 1, "B": 2}), ("some where/else", {"B": 2, "A": 1})):
            directory = tmp_path / directory_name
            directory.mkdir(parents=True)
            (directory / "k.cu").write_text(text)
            (directory / "more.cuh").write_text(header)
            result, artifact = compile_one(Build("k", defines=defines), directory / "k.cu")
            assert result.outcome is None, result.message
            cubins.append(artifact / "kernel.cubin")
        assert digest_file(cubins[0]) == digest_file(cubins[1])
        assert str(tmp_path).encode() not in cubins[0].read_bytes()

    def test_a_group_gives_equal_bytes_in_any_order(self, compile_group: CompileGroup) -> None:
        _, first = compile_group({"a": make_instance_build(1), "b": make_instance_build(2)})
        _, second = compile_group({"b": make_instance_build(2), "a": make_instance_build(1)})
        assert digest_file(first / "a" / "kernel.cubin") == digest_file(second / "b" / "kernel.cubin")


class TestGroups:
    """Units that differ only in their kernel's name are compiled as one program."""

    def test_each_artifact_stands_alone(self, compile_group: CompileGroup) -> None:
        """Every unit gets the group's cubin and its own symbol; the compile time is shared out."""
        results, into = compile_group({f"tile{tile}": make_instance_build(tile) for tile in (1, 2, 4)})
        assert {result.outcome for result in results.values()} == {None}
        assert len({digest_file(into / key / "kernel.cubin") for key in results}) == 1
        assert len({result.seconds for result in results.values()}) == 1
        for tile in (1, 2, 4):
            description = json.loads((into / f"tile{tile}" / "kernel.json").read_text())
            assert description["lowered"] == results[f"tile{tile}"].facts["lowered"]
            assert f"IfLi{tile}E" in description["lowered"]
            assert description["lowered"].encode() in (into / f"tile{tile}" / "kernel.cubin").read_bytes()

    def test_other_macros_flags_or_sources_are_other_programs(
        self, compile_group: CompileGroup, tmp_path: Path
    ) -> None:
        builds = {
            "plain": make_instance_build(1),
            "macro": make_instance_build(1, defines={"M": 1}),
            "flag": make_instance_build(1, flags=("-use_fast_math",)),
        }
        results, _ = compile_group(builds)
        assert {result.outcome for result in results.values()} == {None}
        # Units of one program would have equal seconds.
        assert len({result.seconds for result in results.values()}) == 3

    def test_equal_kernels_with_other_launch_sizes_are_compiled_once(self, compile_group: CompileGroup) -> None:
        """Grid, block and shared memory do not enter the machine code."""
        results, into = compile_group(
            {"few": make_instance_build(1, grid=(1,)), "many": make_instance_build(1, grid=(100,), shared_bytes=512)}
        )
        assert [result.facts["dynamic_shared_bytes"] for result in results.values()] == [0, 512]
        assert digest_file(into / "few" / "kernel.cubin") == digest_file(into / "many" / "kernel.cubin")
        assert digest_file(into / "few" / "kernel.json") != digest_file(into / "many" / "kernel.json")

    @pytest.mark.parametrize("bad", [{0}, {5}, {2, 3}, {0, 1, 2, 3, 4, 5}])
    def test_bad_units_fail_alone_with_their_own_words(
        self, bad: set[int], compile_group: CompileGroup, tmp_path: Path
    ) -> None:
        """Bad units get their own errors wherever they are in a group; all others get their artifacts."""
        source = tmp_path / "picky.cu"
        condition = " && ".join(["true", *(f"N != {number}" for number in bad)])
        source.write_text(f'template <int N> __global__ void k() {{ static_assert({condition}, "no such N"); }}')
        results, into = compile_group({f"n{number}": Build(f"k<{number}>") for number in range(6)}, source)
        assert len(results) == 6
        for number in range(6):
            result = results[f"n{number}"]
            if number in bad:
                assert result.outcome is Outcome.COMPILE_ERROR
                assert result.message.splitlines()[0].startswith("picky.cu(1): error: static assertion failed")
                assert f"[with N={number}]" in result.message
            else:
                assert result.outcome is None, result.message
                assert (into / f"n{number}" / "kernel.cubin").is_file()


@pytest.mark.parametrize(
    ("build", "text", "message"),
    [
        (Build("missing"), None, 'identifier "missing" is undefined'),
        (Build("scale<float, nothing>"), None, 'identifier "nothing" is undefined'),
        (make_instance_build(1, flags=("--no-such-flag",)), None, "unrecognized option --no-such-flag"),
        (Build("k"), '#include "gone.h"', 'cannot open source file "gone.h"'),
        (
            make_instance_build(1, defines={"BROKEN": True}),
            None,
            'scale.cu(5): catastrophic error: #error directive: "BROKEN is defined"',
        ),
    ],
)
def test_each_way_of_not_building_is_a_result(
    build: Build, text: str | None, message: str, compile_one: Compile, tmp_path: Path
) -> None:
    """An unknown kernel, flag or header and an #error are compile errors; the first line names the fault."""
    source = SOURCE
    if text is not None:
        source = tmp_path / "source.cu"
        source.write_text(text)
    result, _ = compile_one(build, source)
    assert result.outcome is Outcome.COMPILE_ERROR
    assert message in result.message.splitlines()[0]


def test_a_source_that_is_gone_is_a_result(compile_one: Compile, tmp_path: Path) -> None:
    """A source may vanish while a job runs."""
    result, _ = compile_one(make_instance_build(1), tmp_path / "gone.cu")
    assert result.outcome is Outcome.COMPILE_ERROR
    assert "gone.cu: error: No such file" in result.message


def test_a_long_compiler_message_is_cut() -> None:
    """The first error stays and the rest is cut."""
    message = move_error_first(
        "k.cu(1): warning: w\n" * 5000 + "k.cu(2): error: no\n" + "note\n" * 10_000, program.ERROR
    )
    assert message.startswith("k.cu(2): error: no\n")
    assert len(message) == MAX_MESSAGE_CHARS


@pytest.mark.parametrize("target", ["sm_20", "sm_999", "native-elsewhere", ""])
def test_a_target_that_nvrtc_does_not_know_is_unsupported(target: str, compile_one: Compile) -> None:
    """The message names it and the known targets."""
    result, _ = compile_one(target=target)
    assert result.outcome is Outcome.UNSUPPORTED
    assert repr(target) in result.message
    assert "sm_90" in result.message


def test_relative_flags_start_at_the_source(compile_one: Compile, tmp_path: Path) -> None:
    """Quoted includes do so, too, and headers in such directories are found by name."""
    (tmp_path / "src").mkdir()
    (tmp_path / "my include" / "deep").mkdir(parents=True)
    (tmp_path / "my include" / "outer.cuh").write_text('#include "deep/inner.cuh"\n')
    (tmp_path / "my include" / "deep" / "inner.cuh").write_text('#include "beside.cuh"\n')
    (tmp_path / "my include" / "deep" / "beside.cuh").write_text("constexpr int kAnswer = 42;\n")
    source = tmp_path / "src" / "k.cu"
    source.write_text('#include "outer.cuh"\n__global__ void k(int* out) { *out = kAnswer; }\n')
    before = Path.cwd()
    result, artifact = compile_one(Build("k", flags=("-I../my include",)), source)
    assert result.outcome is None, result.message
    assert Path.cwd() == before
    kept_sources = [path.relative_to(artifact / "sources") for path in (artifact / "sources").rglob("*.cu*")]
    assert sorted(path.as_posix() for path in kept_sources) == [
        "my include/deep/beside.cuh",
        "my include/deep/inner.cuh",
        "my include/outer.cuh",
        "src/k.cu",
    ]


def test_cudas_own_headers_are_found(compile_one: Compile, tmp_path: Path) -> None:
    """Half precision, tensor cores and libcu++ need no flags."""
    source = tmp_path / "k.cu"
    source.write_text("""
        #include <cuda_bf16.h>
        #include <cuda_fp16.h>
        #include <cuda/std/cstdint>
        #include <mma.h>
        __global__ void k(__half* out, cuda::std::int64_t value) { *out = __half(float(value)); }
    """)
    result, _ = compile_one(Build("k"), source)
    assert result.outcome is None, result.message


class TestHeaders:
    """Which of several CUDA header directories are used."""

    def make_header_directory(self, root: Path, version: int) -> Path:
        """Make a directory of headers of a CUDA version."""
        (root / "include").mkdir(parents=True)
        (root / "include" / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {version}\n")
        return root / "include"

    def test_headers_of_nvrtcs_version_are_preferred(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """An exact match anywhere wins over the first directory; another minor version is better than none."""
        first, second = (
            self.make_header_directory(tmp_path / "first", 99010),
            self.make_header_directory(tmp_path / "second", 99020),
        )
        monkeypatch.setenv("CUDA_HOME", str(first.parent))
        monkeypatch.setenv("CUDA_PATH", str(second.parent))
        assert cuda_headers.find((99, 2)) == cuda_headers.Headers((second,), (99, 2))
        assert cuda_headers.find((99, 3)) == cuda_headers.Headers((first,), (99, 1))
        assert cuda_headers.find((98, 0)) is None

    def test_all_directories_of_the_chosen_version_are_searched(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A wheel may hold only part of a toolkit."""
        first, second = (
            self.make_header_directory(tmp_path / "first", 99010),
            self.make_header_directory(tmp_path / "second", 99010),
        )
        monkeypatch.setenv("CUDA_HOME", str(first.parent))
        monkeypatch.setenv("CUDA_PATH", str(second.parent))
        assert cuda_headers.find((99, 1)) == cuda_headers.Headers((first, second), (99, 1))

    def test_libcudacxx_is_found_in_toolkits_and_in_wheels(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Toolkits have it below their headers, CUDA 12 wheels beside them."""
        directory = self.make_header_directory(tmp_path / "cuda_runtime", 99010)
        (directory / "cccl").mkdir()
        (tmp_path / "cuda_cccl" / "include").mkdir(parents=True)
        monkeypatch.setenv("CUDA_HOME", str(directory.parent))
        headers = cuda_headers.find((99, 1))
        assert headers is not None
        assert headers.directories == (directory, directory / "cccl", tmp_path / "cuda_cccl" / "include")


class TestPrecompiledHeaders:
    """Precompiled headers are made on the second use, are few and private, end with their process, and never cause a
    failure.
    """

    def test_options_get_a_header_when_they_come_again(self, tmp_path: Path) -> None:
        """Options that are used once, as with varying macros, cost nothing."""
        headers = precompiled.PrecompiledHeaders(tmp_path)
        assert headers.choose_options("a", 1) == ()
        assert headers.choose_options("b", 1) == ()
        assert headers.choose_options("a", 1)[0] == "-pch"
        assert headers.choose_options("a", 1) == headers.choose_options("a", 4)
        assert len(list(tmp_path.iterdir())) == 1

    def test_options_of_several_kernels_get_a_header_at_once(self, tmp_path: Path) -> None:
        """One group announces more."""
        assert precompiled.PrecompiledHeaders(tmp_path).choose_options("a", 4)[0] == "-pch"

    def test_only_the_last_used_headers_are_kept(self, tmp_path: Path) -> None:
        """A header may take hundreds of MB."""
        headers = precompiled.PrecompiledHeaders(tmp_path)
        keys = [f"key{number}" for number in range(precompiled.MAX_KEPT + 1)]
        directories = []
        for key in keys:
            directories.append(Path(headers.choose_options(key, 2)[1].removeprefix("-pch-dir=")))
        assert [path.is_dir() for path in directories] == [False] + [True] * precompiled.MAX_KEPT

    def test_nvrtc_uses_the_header_and_gives_the_same_bytes(self, tmp_path: Path) -> None:
        """NVRTC reports its use, the cubin is the same, and the header is removed when the process ends."""
        code = """if True:
            import sys
            from pathlib import Path
            from ktuned.ipc.manifest import digest_file
            from ktuned_nvrtc import Nvrtc, Build, precompiled
            from ktuned.backends import Unit
            source, into = Path(sys.argv[1]), Path(sys.argv[2])
            found = []
            for number, flags in enumerate([(), (), ("-pch-verbose=true",), ("-pch-verbose=true",), ()]):
                (into / str(number)).mkdir()
                unit = Unit(str(number), Build("k", flags=flags), (source,), source, "k", "sm_90a")
                (result,) = Nvrtc().compile([unit], into)
                assert result.outcome is None, result.message
                found.append(digest_file(into / str(number) / "kernel.cubin"))
            assert len(set(found)) == 1, found
            print(len(list(precompiled._open_for_process()._directory.glob("*/*.pch"))))
        """
        source = tmp_path / "k.cu"
        source.write_text("#include <cuda_fp16.h>\n__global__ void k(__half* x) { *x = __hadd(*x, *x); }\n")
        (tmp_path / "into").mkdir()
        assert run_python(code, source, tmp_path / "into", KTUNED_CACHE=str(tmp_path / "cache")) == "2"
        assert list((tmp_path / "cache" / "nvrtc").iterdir()) == []

    @pytest.mark.parametrize(("most", "made"), [(1 << 30, 1), (1 << 20, 0)])
    def test_headers_that_need_much_memory_get_it_or_are_given_up(self, most: int, made: int, tmp_path: Path) -> None:
        """NVRTC's heap is large from the start; a header that does not fit is not tried again."""
        code = """if True:
            import sys
            from pathlib import Path
            from ktuned_nvrtc import Nvrtc, Build, precompiled
            from ktuned.backends import Unit
            precompiled.MAX_HEAP_BYTES = int(sys.argv[3])
            source, into = Path(sys.argv[1]), Path(sys.argv[2])
            for number in range(4):
                (into / str(number)).mkdir()
                (result,) = Nvrtc().compile([Unit(str(number), Build("k"), (source,), source, "k", "sm_90a")], into)
                assert result.outcome is None, result.message
            kept = precompiled._open_for_process()
            print(len(list(kept._directory.glob("*/*.pch"))), len(kept._excluded))
        """
        source = tmp_path / "k.cu"
        source.write_text("#include <cuda_fp16.h>\n__global__ void k(__half* x) { *x = __hadd(*x, *x); }\n")
        (tmp_path / "into").mkdir()
        output = run_python(code, source, tmp_path / "into", most, KTUNED_CACHE=str(tmp_path / "cache"))
        assert output == f"{made} {1 - made}"


class TestBuild:
    """What a Build refuses at once, in the kernel function."""

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"entry": " "}, "entry is empty"),
            ({"defines": {"1st": 1}}, "'1st' is not a C\\+\\+ identifier"),
            ({"grid": 4}, "grid is 4, not a tuple"),
            ({"grid": (0,)}, "grid must be a tuple of at most three positive ints"),
            ({"block": (1, 2, 3, 4)}, "block must be"),
            ({"cluster": (2.0,)}, r"cluster\[0\] is 2.0, not an int"),
            ({"shared_bytes": -1}, "shared_bytes must be"),
            ({"args": (("i8", 300),)}, "300 does not fit i8"),
            ({"args": (("float8", 1.0),)}, "cannot be of type float8"),
        ],
    )
    def test_an_invalid_build_is_an_error_at_once(self, fields: dict[str, object], message: str) -> None:
        with pytest.raises((TypeError, ValueError), match=message):
            Build(**{"entry": "k", **fields})  # type: ignore[arg-type]

    def test_defines_become_macros(self) -> None:
        """True defines a name, False does not, and any other value is the macro's text."""
        build = Build("f", defines={"ON": True, "OFF": False, "N": 4, "X": 0.5, "V": "FAST"})
        assert build.macros == ("-DN=4", "-DON", "-DV=FAST", "-DX=0.5")


def test_a_missing_nvrtc_is_a_backend_error_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, compile_one: Compile
) -> None:
    """A missing compiler is the machine's fault, not the config's."""

    def raise_missing() -> tuple[int, int]:
        raise program.NoNvrtc("NVRTC cannot be loaded: no libnvrtc")

    monkeypatch.setattr(program, "read_version", raise_missing)
    monkeypatch.setattr(
        "ktuned_nvrtc.backend.torch_cuda_devices",
        lambda: (Device(DeviceName("cuda:0"), DeviceModel("H200"), Target(TARGET)),),
    )
    with pytest.raises(BackendError, match="no libnvrtc") as caught:
        compile_one()
    assert "pip install" in caught.value.hint
    absence = Nvrtc().devices()
    assert isinstance(absence, Absent)
    assert absence.reason is Absence.NO_COMPILER
    assert Nvrtc().fingerprint()["nvrtc"] == "none"


def test_the_fingerprint_has_nvrtcs_patch_version() -> None:
    """Patches change code, too."""
    major, minor = program.read_version()
    assert Nvrtc().fingerprint()["nvrtc"].startswith(f"{major}.{minor}.")


def test_another_architectures_artifact_is_unsupported(compile_one: Compile) -> None:
    """The artifact's description suffices; the driver is not asked."""
    _, artifact = compile_one()
    unit = Unit("unit", make_instance_build(2), (SOURCE,), SOURCE, "scale", "sm_100a")
    with pytest.raises(Unsupported, match=r"compiled for sm_90a, and cuda:0 is sm_100a"):
        Nvrtc().load(artifact, unit, Device(DeviceName("cuda:0"), DeviceModel("NVIDIA B200"), Target("sm_100a")))


def test_constants_have_symbols(compile_one: Compile, tmp_path: Path) -> None:
    """An artifact has the symbol of each variable into which tensors are copied; a missing variable is an error."""
    source = tmp_path / "filter.cu"
    source.write_text("namespace a { __constant__ float taps[9]; }\n__global__ void k(float* y) { *y = a::taps[1]; }\n")
    result, artifact = compile_one(Build("k", ("y",), constants={"a::taps": "taps"}), source)
    assert result.outcome is None, result.message
    assert json.loads((artifact / "kernel.json").read_text())["constants"] == {"a::taps": "_ZN1a4tapsE"}
    result_without_symbol, _ = compile_one(Build("k", ("y",), constants={"a::tap": "taps"}), source)
    assert result_without_symbol.outcome is Outcome.COMPILE_ERROR
    assert "tap" in result_without_symbol.message
    with pytest.raises(ValueError, match="is not the name of a variable"):
        Build("k", constants={"a taps": "taps"})
