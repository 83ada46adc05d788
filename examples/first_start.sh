#!/usr/bin/env bash
# The first start of a GPU user: from a machine with an NVIDIA driver to the second start of a library.
#
#     bash examples/first_start.sh [WHEELS]
#
# It prints the time of each step. WHEELS is the directory of ktuned's wheels; the default is dist, which `make wheels`
# fills. pip takes the other packages from its index, or with PIP_NO_INDEX=1 from WHEELS, too. Everything lies in a new
# directory below $TMPDIR (torch needs several GiB), with a daemon and caches of its own.
set -euo pipefail

fail() {
    echo "first_start.sh: $1" >&2
    exit 1
}

# The driver is checked first, because nothing below works without it.
type -P nvidia-smi >/dev/null || fail "there is no NVIDIA driver (no nvidia-smi on the PATH): install the driver first.
To try ktuned without a GPU, follow docs/guide/first-kernel.md."
nvidia-smi -L || fail "the NVIDIA driver finds no GPU: see the error of nvidia-smi above."

python=${PYTHON:-python3}
"$python" -c 'import sys, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' ||
    fail "$python is not Python 3.11 to 3.13 with venv: apt install python3-venv, or name another one with PYTHON=…"
# Triton compiles its launcher in C when a program starts.
type -P gcc >/dev/null || type -P clang >/dev/null || fail "there is no C compiler: apt install gcc"
"$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
    fail "there are no headers of $python: apt install python3-dev"

examples=$(cd "$(dirname "$0")" && pwd)
wheels=${1:-$examples/../dist}
compgen -G "$wheels/ktuned-[0-9]*.whl" >/dev/null || fail "there are no wheels in $wheels: run make wheels in a checkout"
wheels=$(cd "$wheels" && pwd)

directory=$(mktemp -d -t ktuned-first-start.XXXXXX)
export KTUNED_HOME=$directory/home KTUNED_SOCKET=$directory/run/ktuned.sock TRITON_CACHE_DIR=$directory/triton
export PATH=$directory/venv/bin:$PATH
mkdir -m 700 "$KTUNED_HOME"
trap 'ktuned stop >/dev/null 2>&1 || true' EXIT

times=()

# Runs a command, and notes how long it took: step NAME COMMAND…
step() {
    local name=$1 began=${EPOCHREALTIME//[!0-9]/} ms
    shift
    printf '\n== %s: %s\n' "$name" "$*"
    "$@" || fail "the step failed: $name. Its files are in $directory"
    ms=$(((${EPOCHREALTIME//[!0-9]/} - began) / 1000))
    times+=("$(printf '%7d.%d s  %s' $((ms / 1000)) $((ms % 1000 / 100)) "$name")")
}

# Prints how many recorded calls and open jobs there are. A record is removed after its job is stored, so none is missed.
count_open() {
    ktuned status --json | python -c '
import json, os, sys
jobs = json.load(sys.stdin)["jobs"]
spool = os.path.join(os.environ["KTUNED_HOME"], "spool")
records = [name for name in (os.listdir(spool) if os.path.isdir(spool) else []) if name.endswith(".call")]
print(len(records) + jobs["running"] + jobs["queued"])'
}

wait_for_winners() {
    local last="" open
    while open=$(count_open) && [ "$open" != 0 ]; do
        [ "$open" = "$last" ] || echo "$open keys are open"
        last=$open
        ((SECONDS < 3600)) || fail "the tuning has not ended after an hour: see \`ktuned jobs\`"
        sleep 1
    done
    [ "$open" = 0 ]
}

SECONDS=0
step "make an environment" "$python" -m venv "$directory/venv"
step "install ktuned and the library" python -m pip install --quiet --find-links "$wheels" 'ktuned[triton]' flash-linear-attention
step "check the installation" ktuned doctor
step "first start" ktuned run python "$examples/library_layer/infer.py"
step "tune in the background" wait_for_winners
step "second start" ktuned run python "$examples/library_layer/infer.py"
step "stop the daemon" ktuned stop

printf '\n== times\n'
printf '%s\n' "${times[@]}"
echo "delete $directory to remove everything"
