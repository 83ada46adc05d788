"""A Ray cluster of some nodes on this machine, for as long as standard input is open.

``python tests/ray/cluster_process.py NODES DIRECTORY``; prints one line of JSON: the ``address``, and for each node its
``name``, ``id`` and raylet's ``pid``; and the ``head`` server's. Then it takes commands, one a line: ``add NAME``.

With ``--bare-head`` the first node has no resources, as in production; with ``--gpus`` each other one has one GPU.
"""

import argparse
import json
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ |= {
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # A dead node is noticed after some 3 s instead of 30.
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}

from ray.cluster_utils import Cluster


def _pid(node: Any, kind: str) -> int:
    (process,) = node.all_processes[kind]
    return int(process.process.pid)


def main() -> None:
    """Run a cluster until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("nodes", type=int)
    parser.add_argument("directory")
    parser.add_argument("--bare-head", action="store_true")
    parser.add_argument("--gpus", action="store_true")
    parser.add_argument("--client-port", type=int, help="port of the head's client server")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    # Ray notes the cluster's address there, also where all else has another directory.
    Path("/tmp/ray").mkdir(exist_ok=True)
    cluster = Cluster()
    made = {}
    for number in range(options.nodes):
        if options.gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = str(number - 1) if number else ""
        cpus = 0 if options.bare_head and not number else 2
        gpus = int(options.gpus and number > 0)
        head = {"temp_dir": options.directory, "ray_client_server_port": options.client_port}
        made[f"n{number}"] = _add(cluster, f"n{number}", cpus, gpus, {} if number else head)
    found = [{"name": name, "id": node.node_id, "pid": _pid(node, "raylet")} for name, node in made.items()]
    print(json.dumps({"address": cluster.address, "head": _pid(made["n0"], "gcs_server"), "nodes": found}), flush=True)
    for line in sys.stdin:
        match line.split():
            case ["add", name]:
                node = _add(cluster, name)
                print(json.dumps({"name": name, "id": node.node_id, "pid": _pid(node, "raylet")}), flush=True)
    cluster.shutdown()


def _add(cluster: Cluster, name: str, cpus: int = 2, gpus: int = 0, head: Mapping[str, Any] | None = None) -> Any:
    return cluster.add_node(
        wait=False,
        num_cpus=cpus,
        num_gpus=gpus,
        object_store_memory=80 << 20,
        include_dashboard=False,
        node_name=name,
        **(head or {}),
    )


if __name__ == "__main__":
    main()
