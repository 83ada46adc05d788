"""Samples of values that the store keeps."""

from ktuned.model.kernel import KernelInfo, SpaceInfo
from ktuned.model.keys import DeviceModel, KernelName, KeyProblem, ProjectName
from ktuned.model.plan import Plan
from ktuned.model.trial import TrialResult
from ktuned.model.values import Outcome, Problem, canonical
from ktuned.protocol.jobs import Job, Priority
from ktuned.store.contexts import Context
from ktuned.store.database import Store
from tests.trials import make_detail

PROBLEM: Problem = {"M": 64, "dtype": "float32"}
CONTEXT = Context(
    KernelName("proj:gemm"), KeyProblem(canonical(PROBLEM)), DeviceModel("cpu-x"), "d1", "gcc-12", "linux-6"
)
NEW_CONTEXT = Context(
    KernelName("proj:gemm"), KeyProblem(canonical(PROBLEM)), DeviceModel("cpu-x"), "d2", "gcc-12", "linux-6"
)
OTHER_KERNEL = Context(
    KernelName("proj:add"), KeyProblem(canonical(PROBLEM)), DeviceModel("cpu-x"), "d1", "gcc-12", "linux-6"
)


def make_measured_result(latency_us: float) -> TrialResult:
    """Return a measured result."""
    return TrialResult(Outcome.MEASURED, latency_us, 0.1, 1.5, 0.2, artifact="ab12", detail=make_detail(count=10))


def make_failed_result(outcome: Outcome) -> TrialResult:
    """Return a result without a latency."""
    return TrialResult(outcome, message=f"it was {outcome}", detail=make_detail(phase="run"))


async def create_job(store: Store, kernel: str = CONTEXT.kernel) -> Job:
    return await store.create_job(
        CONTEXT.key._replace(kernel=KernelName(kernel)),
        PROBLEM,
        priority=Priority.ASKED,
        reason="asked",
        plan=Plan(seed=3),
        now=1000.0,
    )


async def run_trial(store: Store, job: Job, config: int, result: TrialResult, context: Context = CONTEXT) -> int:
    """Begin and finish a trial, and return its id."""
    number = await store.begin_trial(context, PROBLEM, job.id, {"BM": config})
    await store.finish_trial(number, result)
    return number


def make_kernel_info(kernel: str = "gemm") -> KernelInfo:
    return KernelInfo(
        project=ProjectName("proj"),
        kernel=kernel,
        file="/p/tune_gemm.py",
        line=7,
        backend="tvm_ffi",
        digest="d",
        source_digest="s",
        plan_digest="p",
        sources=("/p/gemm.cc",),
        stamps={"/p/gemm.cc": "00", "/p/missing.h": ""},
        problems=({"M": 64}, {"M": 128}),
        default={"BM": 8},
        specialize=("M",),
        space=SpaceInfo(size=4),
        plan=Plan(trials=4, deadlines={"run": 2.0}),
    )
