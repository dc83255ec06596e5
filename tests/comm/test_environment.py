"""What each launcher's environment means, and which environments are refused."""

import pytest

from fastsample_dist.comm.environment import (
    LaunchInfo,
    first_host,
    parse_environment,
    slurm_port,
    tasks_on_node,
)

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node7",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
BY_HAND = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1234"}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "6",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "2",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "6",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4,2",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
    "SLURM_JOB_NODELIST": "gpu[03,07-08]",
}


def without(environ, *names):
    return {name: value for name, value in environ.items() if name not in names}


# ---- what is understood ----


def test_no_launcher_is_a_local_run():
    assert parse_environment({"HOME": "/root"}) == LaunchInfo("none", "local", 0, 1, 0, 1)


def test_torchrun():
    assert parse_environment(TORCHRUN) == LaunchInfo(
        "torchrun", "torch", 3, 4, 1, 2, "node7", 29500, agent_store=True, attempt=2
    )


def test_torch_variables_set_by_hand_leave_the_local_rank_open():
    assert parse_environment(BY_HAND) == LaunchInfo("torchrun", "torch", 1, 2, None, None, "localhost", 1234)


def test_open_mpi():
    assert parse_environment(OPENMPI) == LaunchInfo("openmpi", "mpi", 2, 6, 0, 2)


def test_mpich_and_intel_mpi():
    assert parse_environment(HYDRA) == LaunchInfo("pmi", "mpi", 1, 4, 1, 2)


def test_pmi_without_local_ranks():
    assert parse_environment({"PMI_RANK": "1", "PMI_SIZE": "4"}) == LaunchInfo("pmi", "mpi", 1, 4, None, None)


def test_slurm_meets_at_the_first_host_of_the_step():
    assert parse_environment(SLURM) == LaunchInfo("slurm", "torch", 5, 6, 1, 2, "gpu07", slurm_port(4711, 0))


def test_slurm_falls_back_to_the_node_list_of_the_job():
    assert parse_environment(without(SLURM, "SLURM_STEP_NODELIST")).master_addr == "gpu03"


def test_slurm_takes_a_given_master():
    info = parse_environment({**SLURM, "MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "31000"})
    assert (info.master_addr, info.master_port) == ("10.0.0.9", 31000)


def test_slurm_counts_the_tasks_of_the_step_not_of_the_job():
    assert parse_environment({**SLURM, "SLURM_STEP_NUM_TASKS": "6", "SLURM_NTASKS": "99"}).world_size == 6


def test_slurm_without_a_layout_leaves_the_local_rank_open():
    info = parse_environment(without(SLURM, "SLURM_STEP_TASKS_PER_NODE"))
    assert (info.local_rank, info.local_world_size) == (None, None)


def test_two_steps_of_a_job_meet_at_different_ports():
    assert len({slurm_port(4711, step) for step in range(100)}) == 100


def test_slurm_ports_are_below_the_ephemeral_range():
    ports = [slurm_port(job, step) for job in (0, 1, 10**9 + 7) for step in (0, 5, 2**32 - 5)]
    assert min(ports) >= 15000
    assert max(ports) < 32768


def test_a_batch_script_outside_a_step_is_a_local_run():
    batch = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_NODEID": "0"}
    assert parse_environment(batch) == LaunchInfo("none", "local")


# ---- launchers inside launchers ----


def test_torchrun_under_srun_is_torchrun():
    assert parse_environment({**SLURM, **TORCHRUN}).launcher == "torchrun"


def test_open_mpi_inside_a_slurm_step_is_open_mpi():
    assert parse_environment({**SLURM, **OPENMPI}).launcher == "openmpi"


def test_intel_mpi_inside_a_slurm_step_is_mpi():
    assert parse_environment({**SLURM, **HYDRA}).launcher == "pmi"


def test_srun_with_pmi_is_slurm():
    assert parse_environment({**SLURM, "PMI_RANK": "5", "PMI_SIZE": "6"}).launcher == "slurm"


def test_srun_with_pmix_is_slurm():
    assert parse_environment({**SLURM, "PMIX_RANK": "5"}).launcher == "slurm"


def test_torch_variables_that_repeat_mpiruns_are_taken():
    environ = {**OPENMPI, **BY_HAND, "RANK": "2", "WORLD_SIZE": "6"}
    assert parse_environment(environ).backend == "torch"


def test_a_slurm_task_may_start_several_ranks_itself():
    assert parse_environment({**SLURM, **BY_HAND, "RANK": "11", "WORLD_SIZE": "12"}).world_size == 12


# ---- a backend of one's own choice ----


def test_mpi_under_srun():
    assert parse_environment(SLURM, "mpi") == LaunchInfo("slurm", "mpi", 5, 6, 1, 2)


def test_mpi_in_one_process():
    assert parse_environment({}, "mpi") == LaunchInfo("none", "mpi")


def test_torch_in_one_process_needs_no_address():
    assert parse_environment({}, "torch") == LaunchInfo("none", "torch")


def test_torch_under_mpirun_with_an_address():
    info = parse_environment({**OPENMPI, "MASTER_ADDR": "a", "MASTER_PORT": "5"}, "torch")
    assert info == LaunchInfo("openmpi", "torch", 2, 6, 0, 2, "a", 5)


@pytest.mark.parametrize(
    ("environ", "backend", "problem"),
    [
        ({}, "nccl", "backend is 'nccl'; expected one of torch, mpi, local"),
        (TORCHRUN, "mpi", "torchrun started this process"),
        (TORCHRUN, "local", "torchrun started 4 ranks"),
        (OPENMPI, "torch", "MASTER_ADDR, MASTER_PORT missing"),
    ],
    ids=["unknown", "mpi-under-torchrun", "local-with-ranks", "torch-under-mpirun-without-address"],
)
def test_a_backend_that_cannot_be_is_refused(environ, backend, problem):
    with pytest.raises(ValueError, match=problem):
        parse_environment(environ, backend)


# ---- what is refused, with the variables seen ----

REFUSED = {
    "rank-alone": ({"RANK": "1"}, "WORLD_SIZE, MASTER_ADDR, MASTER_PORT missing", "RANK=1"),
    "size-alone": ({"WORLD_SIZE": "2"}, "RANK, MASTER_ADDR, MASTER_PORT missing", "WORLD_SIZE=2"),
    "no-port": (without(BY_HAND, "MASTER_PORT"), "MASTER_PORT missing", "MASTER_ADDR=localhost"),
    "no-address": (without(TORCHRUN, "MASTER_ADDR"), "MASTER_ADDR missing", "MASTER_PORT=29500"),
    "address-empty": ({**BY_HAND, "MASTER_ADDR": " "}, "MASTER_ADDR is empty", "MASTER_PORT=1234"),
    "address-alone": ({"MASTER_ADDR": "a", "MASTER_PORT": "1"}, "RANK, WORLD_SIZE missing", "MASTER_PORT=1"),
    "rank-not-a-number": ({**BY_HAND, "RANK": "one"}, "RANK is 'one'", "WORLD_SIZE=2"),
    "rank-empty": ({**BY_HAND, "RANK": ""}, "RANK is ''", "WORLD_SIZE=2"),
    "rank-too-large": ({**BY_HAND, "RANK": "2"}, "RANK is 2.*below 2", "WORLD_SIZE=2"),
    "rank-negative": ({**BY_HAND, "RANK": "-1"}, "RANK is -1", "WORLD_SIZE=2"),
    "no-ranks": ({**BY_HAND, "WORLD_SIZE": "0"}, "WORLD_SIZE is 0.*>= 1", "RANK=1"),
    "port-too-large": ({**BY_HAND, "MASTER_PORT": "65536"}, "MASTER_PORT is 65536", "RANK=1"),
    "local-rank-alone": (without(TORCHRUN, "LOCAL_WORLD_SIZE"), "LOCAL_WORLD_SIZE missing", "LOCAL_RANK=1"),
    "local-rank-too-large": ({**TORCHRUN, "LOCAL_RANK": "2"}, "LOCAL_RANK is 2", "LOCAL_WORLD_SIZE=2"),
    "local-size-too-large": ({**TORCHRUN, "LOCAL_WORLD_SIZE": "5"}, "LOCAL_WORLD_SIZE is 5", "WORLD_SIZE=4"),
    "open-mpi-without-size": (
        without(OPENMPI, "OMPI_COMM_WORLD_SIZE"),
        "OMPI_COMM_WORLD_SIZE missing",
        "OMPI_COMM_WORLD_RANK=2",
    ),
    "open-mpi-rank-too-large": (
        {**OPENMPI, "OMPI_COMM_WORLD_RANK": "6"},
        "OMPI_COMM_WORLD_RANK is 6",
        "OMPI_COMM_WORLD_SIZE=6",
    ),
    "pmi-without-rank": (without(HYDRA, "PMI_RANK"), "PMI_RANK missing", "PMI_SIZE=4"),
    "pmix-alone": ({"PMIX_RANK": "0"}, "OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE missing", "PMIX_RANK=0"),
    "slurm-without-size": (without(SLURM, "SLURM_NTASKS"), "SLURM_NTASKS missing", "SLURM_PROCID=5"),
    "slurm-without-step": (without(SLURM, "SLURM_STEP_ID"), "SLURM_STEP_ID missing", "SLURM_PROCID=5"),
    "slurm-without-nodes": (
        without(SLURM, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"),
        "no node list",
        "SLURM_NTASKS=6",
    ),
    "slurm-local-rank-too-large": ({**SLURM, "SLURM_LOCALID": "2"}, "SLURM_LOCALID is 2", "SLURM_NODEID=1"),
    "srun-and-pmi-disagree": (
        {**SLURM, "PMI_RANK": "0", "PMI_SIZE": "2"},
        "PMI says rank 0 of 2 but Slurm says 5 of 6",
        "PMI_SIZE=2",
    ),
    "mpirun-and-torch-disagree": (
        {**OPENMPI, **BY_HAND},
        "rank 1 of 2 but mpirun says 2 of 6",
        "OMPI_COMM_WORLD_RANK=2",
    ),
    "stale-world-size-under-srun": (
        {**SLURM, **BY_HAND, "RANK": "0", "WORLD_SIZE": "1"},
        "WORLD_SIZE is 1 but srun started 6 tasks",
        "SLURM_NTASKS=6",
    ),
}


@pytest.mark.parametrize(("environ", "problem", "seen"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_environment_is_refused_with_the_variables_seen(environ, problem, seen):
    with pytest.raises(ValueError, match=problem) as refusal:
        parse_environment(environ)
    assert seen in str(refusal.value)
    assert "\n" not in str(refusal.value)


# ---- Slurm's notations ----


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("node[1-4]", "node1"),
        ("node[007,009-012]", "node007"),
        ("gpu-a[3,5],login1", "gpu-a3"),
        ("rack[2-3]node[10-12]-ib", "rack2node10-ib"),
        ("n1.cluster.example,n2", "n1.cluster.example"),
    ],
)
def test_first_host_of_a_node_list(nodelist, host):
    assert first_host(nodelist) == host


@pytest.mark.parametrize("nodelist", ["", "node[1-2", "[", "a b", ",node1"])
def test_a_malformed_node_list_is_refused(nodelist):
    with pytest.raises(ValueError, match="node list .* is not understood"):
        first_host(nodelist)


@pytest.mark.parametrize(
    ("text", "index", "tasks"), [("4", 0, 4), ("4(x2),1", 1, 4), ("4(x2),1", 2, 1), ("1,2,3", 1, 2)]
)
def test_tasks_on_a_node(text, index, tasks):
    assert tasks_on_node(text, index) == tasks


@pytest.mark.parametrize(("text", "index"), [("", 0), ("4(x", 0), ("a", 0), ("4(x2)", 2)])
def test_a_malformed_task_list_is_refused(text, index):
    with pytest.raises(ValueError, match="tasks per node"):
        tasks_on_node(text, index)
