"""A Ray cluster of some nodes on this machine, which runs until its standard input ends.

``python tests/ray/cluster_process.py NODES DIRECTORY`` prints one line of JSON: the ``address``, each node's ``name``,
``id`` and raylet's ``pid``, and the ``pid`` of the ``head`` server. Then it reads commands, one a line: ``add NAME``.

Each node but the first has one GPU.
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


def find_pid(node: Any, kind: str) -> int:
    (process,) = node.all_processes[kind]
    return int(process.process.pid)


def run_cluster() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("nodes", type=int)
    parser.add_argument("directory")
    parser.add_argument("--client-port", type=int, help="port of the head's client server")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    # Ray notes the cluster's address there, also where all else has another directory.
    Path("/tmp/ray").mkdir(exist_ok=True)
    cluster = Cluster()
    nodes = {}
    for number in range(options.nodes):
        os.environ["CUDA_VISIBLE_DEVICES"] = str(number - 1) if number else ""
        head = {"temp_dir": options.directory, "ray_client_server_port": options.client_port}
        nodes[f"n{number}"] = add_node(cluster, f"n{number}", int(number > 0), {} if number else head)
    described = [{"name": name, "id": node.node_id, "pid": find_pid(node, "raylet")} for name, node in nodes.items()]
    print(
        json.dumps({"address": cluster.address, "head": find_pid(nodes["n0"], "gcs_server"), "nodes": described}),
        flush=True,
    )
    for line in sys.stdin:
        match line.split():
            case ["add", name]:
                node = add_node(cluster, name)
                print(json.dumps({"name": name, "id": node.node_id, "pid": find_pid(node, "raylet")}), flush=True)
    cluster.shutdown()


def add_node(cluster: Cluster, name: str, gpus: int = 0, head: Mapping[str, Any] | None = None) -> Any:
    return cluster.add_node(
        wait=False,
        num_cpus=2,
        num_gpus=gpus,
        object_store_memory=80 << 20,
        include_dashboard=False,
        node_name=name,
        **(head or {}),
    )


if __name__ == "__main__":
    run_cluster()
