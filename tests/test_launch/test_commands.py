"""From hosts and options to argument vectors: the exact text that --dry-run prints."""

import shlex

import pytest

from fastsample_dist.launch.commands import LaunchOptions, copy_commands, start_commands
from fastsample_dist.launch.hosts import HostEntry, parse_hosts, place_ranks
from fastsample_dist.launch.parts import PartCopy

GUARD = "/py -I -m fastsample_dist.launch.guard"
SSH = "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=2 -o ServerAliveCountMax=3"


def options(**changed):
    basic = {"script": ("train.py", "--data", "my parts"), "python": "/py", "guard": "/g.py", "workdir": "/w"}
    return LaunchOptions(**{**basic, **changed})


def lines(commands):
    return [str(command) for command in commands]


def test_one_machine_under_torchrun():
    assert lines(start_commands(options(nproc=4, max_restarts=2, env=("A=b c",)))) == [
        "/py -I /g.py host --grace-s 5 --ranks 4 --chdir /w --env 'A=b c' -- "
        "/py -m torch.distributed.run --standalone --nproc-per-node 4 --max-restarts 2 --monitor-interval 0.1 "
        "--no-python /py -I /g.py rank --grace-s 5 -- /py -u train.py --data 'my parts'"
    ]


def test_one_machine_under_mpirun():
    made = options(nproc=4, mpirun="/bin/mpirun", as_root=True, oversubscribe=True)
    assert lines(start_commands(made)) == [
        "/py -I /g.py host --grace-s 5 --ranks 4 --chdir /w --interrupt-with SIGUSR2 --terminate-with SIGUSR1 -- "
        "/bin/mpirun --allow-run-as-root --bind-to none --oversubscribe -n 4 "
        "/py -I /g.py rank --grace-s 5 -- /py -u train.py --data 'my parts'"
    ]


@pytest.mark.parametrize("flag", ["--allow-run-as-root", "--oversubscribe"])
def test_mpirun_gets_no_leave_that_it_does_not_need(flag):
    assert flag not in start_commands(options(nproc=2, mpirun="mpirun"))[0].argv


def test_several_hosts_under_torchrun():
    layout = place_ranks(parse_hosts("me@10.0.0.1 slots=2\n10.0.0.2 30050"), None)
    made = start_commands(options(script=("t.py",), master_port=20007, ssh_options=("Port=2222",)), layout)
    shared = "--master-addr 10.0.0.1 --master-port 20007"
    rest = f"--max-restarts 0 --monitor-interval 0.1 --no-python {GUARD} rank --grace-s 5 -- /py -u t.py"
    ssh = SSH.replace("ssh", "ssh -o Port=2222", 1)
    assert lines(made) == [
        f"{ssh} me@10.0.0.1 '{GUARD} host --grace-s 5 --ranks 2 --chdir /w -- /py -m "
        f"torch.distributed.run --nnodes 2 --node-rank 0 {shared} --nproc-per-node 2 {rest}'",
        f"{ssh} 10.0.0.2 '{GUARD} host --grace-s 5 --ranks 1 --chdir /w -- /py -m "
        f"torch.distributed.run --nnodes 2 --node-rank 1 {shared} --nproc-per-node 1 {rest}'",
    ]
    assert [(command.host, command.ranks) for command in made] == [("me@10.0.0.1", range(2)), ("10.0.0.2", range(2, 3))]


def test_several_hosts_under_mpirun_are_one_command():
    layout = place_ranks(parse_hosts("10.0.0.1 slots=2\n10.0.0.2"), None)
    made = start_commands(options(script=("t.py",), mpirun="mpirun", env=("A=b c", "D=")), layout)
    assert lines(made) == [
        "/py -I /g.py host --grace-s 5 --ranks 2 --chdir /w --interrupt-with SIGUSR2 --terminate-with SIGUSR1 "
        "--env 'A=b c' --env D= -- "
        "mpirun --bind-to none --host 10.0.0.1:2,10.0.0.2:1 --map-by slot --wdir /w --mca plm_rsh_no_tree_spawn 1 "
        f"--mca plm_rsh_agent '{SSH}' -x A -x D -n 3 {GUARD} rank --grace-s 5 -- /py -u t.py"
    ]


@pytest.mark.parametrize("target", ["me@a", "fd00::1"])
def test_hosts_that_mpirun_cannot_take_are_refused(target):
    with pytest.raises(ValueError, match="does not go with --mpi"):
        start_commands(options(mpirun="mpirun"), place_ranks([HostEntry(target)], None))


def test_words_reach_the_script_unchanged_through_the_remote_shell():
    words = ("t.py", "it's", "a b", "$HOME", "*", "", 'x"y', "\\", "--", ";")
    [command] = start_commands(options(script=words), place_ranks([HostEntry("a")], None))
    remote = shlex.split(command.argv[-1])
    assert tuple(remote[-len(words) :]) == words


def test_copies_make_the_directory_then_bring_manifest_topology_and_parts():
    [host_ranks] = place_ranks([HostEntry("me@fd00::1")], None)
    copy = PartCopy(host_ranks, ("/p/manifest.json", "/p/topology", "/p/part-0"), "/my data")
    making, copying = copy_commands(options(), [copy])
    assert lines(making) == [f"""{SSH} me@fd00::1 'mkdir -p -- '"'"'/my data'"'"''"""]
    assert lines(copying) == [
        f"rsync --archive --protect-args -e '{SSH}' -- /p/manifest.json /p/topology /p/part-0 'me@[fd00::1]:/my data/'"
    ]
