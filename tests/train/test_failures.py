"""How the command ends when training fails: a failed collective is one line, a fault of the program keeps its place."""

import pytest

from fastsample_dist.train import cli

FAILED = "rank 0, step 3: all_reduce of gradients failed because a peer ended or its connection broke; see its error"


def test_a_failed_collective_is_one_line(monkeypatch, capsys):
    def run(config, ctx):
        ctx.comm._failure = FAILED
        raise RuntimeError(f"{FAILED}.")

    monkeypatch.setattr(cli, "run", run)
    with pytest.raises(SystemExit, match="1"):
        cli.main(["--data", "parts"])
    assert capsys.readouterr().err == f"error: {FAILED}.\n"


def test_a_fault_of_the_program_is_not_hidden(monkeypatch, capsys):
    def run(config, ctx):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(cli, "run", run)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        cli.main(["--data", "parts"])
    assert capsys.readouterr().err == ""


def test_ctrl_c_is_one_line_and_status_130(monkeypatch, capsys):
    def run(config, ctx):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "run", run)
    assert cli.main(["--data", "parts"]) == 130
    assert capsys.readouterr().err == "fastsample-train: interrupted.\n"


def test_ctrl_c_of_a_rank_names_it(monkeypatch, capsys):
    def start(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.DistContext, "from_env", start)
    place = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    for name, value in {**place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["--data", "parts"]) == 130
    assert capsys.readouterr().err == "fastsample-train: rank 1 was interrupted.\n"
