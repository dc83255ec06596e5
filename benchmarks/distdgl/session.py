"""Runs one measurement inside throw-away namespaces; started by run.py, never by hand.

It is process 1 of its own pid, mount and network namespaces. So however it ends (result, error, kill), the
kernel ends every process it started and removes the network, the machines' /dev/shm and the mounts. It ends
when its standard input closes, which is what happens when run.py ends for any reason.

Order: partition (unless the work directory holds this graph's parts), machines, servers and trainers, then
events from the trainers until all are done. The result, or what failed, goes to result.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import threading
from pathlib import Path

from graph_input import fingerprint
from network import create_machines
from processes import ProcessGroup
from settings import GRAPH_NAME, PARTITION_REPORT, Settings

from fastsample_dist.files import write_json  # found where processes.py looks

HERE = Path(__file__).resolve().parent
SERVER_PORT = 30050
MASTER_PORT = 29500
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}


def end_with_parent() -> None:
    """End this process, and with it the whole session, as soon as standard input closes."""
    while os.read(0, 1):
        continue
    os._exit(1)


def clean_environment() -> dict[str, str]:
    """Return this process's environment without DGL's variables and with one thread per process."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DGL", "GLOO"))}
    return kept | ONE_THREAD | {"DGLBACKEND": "pytorch", "PYTHONUNBUFFERED": "1"}


def script(name: str, settings_path: Path, *arguments: str) -> list[str]:
    """Return the command line of one of this directory's scripts."""
    return [sys.executable, str(HERE / name), "--settings", str(settings_path), *arguments]


def ensure_partitions(settings: Settings, settings_path: Path, group: ProcessGroup) -> tuple[Path, dict]:
    """Return the directory of finished partitions and the report about them; partition if they do not fit."""
    output = Path(settings.work) / f"parts-{settings.machines}"
    report_path = output / PARTITION_REPORT
    if report_path.is_file() and not settings.repartition:
        report = json.loads(report_path.read_text())
        if report["input"] == fingerprint(settings.graph):
            print(f"partitions in {output} fit the graph and are used again", flush=True)
            return output, report | {"reused": True}
    print(f"partitioning into {settings.machines} parts", flush=True)
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    group.run("partition", script("partition.py", settings_path, "--output", str(output)))
    return output, json.loads(report_path.read_text()) | {"reused": False}


def start_cluster(settings: Settings, settings_path: Path, group: ProcessGroup) -> dict:
    """Partition, create the machines, start a server and the trainers on each; return the partition report."""
    parts, report = ensure_partitions(settings, settings_path, group)
    machines = create_machines(settings.machines, settings.rate)
    ip_config = Path(settings.work) / "ip_config.txt"
    ip_config.write_text("".join(f"{machine.address} {SERVER_PORT}\n" for machine in machines))
    shared = {
        "DGL_DIST_MODE": "distributed",
        "DGL_IP_CONFIG": str(ip_config),
        "DGL_CONF_PATH": str(parts / f"{GRAPH_NAME}.json"),
        "DGL_NUM_SERVER": "1",
        "DGL_NUM_CLIENT": str(settings.num_trainers),
        "DGL_NUM_SAMPLER": "0",
        "DGL_GRAPH_FORMAT": "csc",
    }
    group.start_clock()
    for machine in machines:
        variables = shared | {"DGL_ROLE": "server", "DGL_SERVER_ID": str(machine.index)}
        group.start(f"server-{machine.index}", machine.enter(*script("server.py", settings_path)), variables)
    for rank in range(settings.num_trainers):
        machine = machines[rank // settings.trainers]
        command = [*script("trainer.py", settings_path), "--machine", str(machine.index), "--rank", str(rank)]
        start_trainer(f"trainer-{rank}", machine.enter(*command), machines[0].address, report, group, shared)
    return report


def start_trainer(
    name: str,
    command: list[str],
    master: str,
    report: dict,
    group: ProcessGroup,
    shared: dict[str, str],
) -> None:
    """Start a trainer; `master` is the address where torch's process group meets."""
    variables = shared | {
        "DGL_ROLE": "client",
        "MASTER_ADDR": master,
        "MASTER_PORT": str(MASTER_PORT),
        "GLOO_SOCKET_IFNAME": "eth0",
    }
    group.start_trainer(name, [*command, "--num-classes", str(report["graph"]["num_classes"])], variables)


def measure(settings: Settings, settings_path: Path) -> dict:
    """Run the measurement and return what the processes reported."""
    logs = Path(settings.work) / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    with ProcessGroup(logs, clean_environment()) as group:
        partition = None
        if settings.single:
            group.start_clock()
            group.start_trainer("single", script("single.py", settings_path), {})
        else:
            partition = start_cluster(settings, settings_path, group)
        group.collect_events()
        exit_codes = group.wait_for_exit()
        return {
            "graph": partition["graph"] if partition else group.first_event("graph")["facts"],
            "partition": partition,
            "started_s": group.started_s,
            "events": group.events,
            "pss_samples": group.pss_samples,
            "clocks": group.clocks,
            "exit_codes": exit_codes,
        }


def main() -> int:
    """Measure as the settings file says and write the result; 1 if there is none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    args = parser.parse_args()
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        result = measure(Settings.read(args.settings), args.settings)
    except (OSError, RuntimeError, ValueError) as error:
        result = {"error": str(error)}
    write_json(args.result, result)
    return 1 if "error" in result else 0


if __name__ == "__main__":
    sys.exit(main())
