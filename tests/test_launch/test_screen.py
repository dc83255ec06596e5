"""What is shown of the ranks' output, and in which order."""

import io
import os

import pytest

from fastsample_dist.launch.screen import HOLD_S, Screen
from fastsample_dist.launch.writer import Writer

TRACE = "Traceback (most recent call last):"


class Watched:
    """A screen with a clock of its own."""

    def __init__(self, hosts=("a", "a"), **options):
        self.now = 0.0
        self.out, self.err = io.StringIO(), io.StringIO()
        self.screen = Screen(self.out, self.err, hosts, clock=lambda: self.now, **options)

    def error(self, *lines, host="a"):
        for line in lines:
            self.screen.take(host, line, True)

    def finish(self, summary="the end", failed=True):
        first = self.screen.first_failure() if failed else None
        self.screen.finish(summary, first, failed=failed)
        return self.err.getvalue().splitlines()


def test_lines_of_one_host_carry_the_rank():
    watched = Watched()
    watched.screen.take("a", "[1] hello", False)
    watched.screen.take("a", "[0] ", False)
    assert watched.out.getvalue() == "[1] hello\n[0] \n"


def test_lines_of_several_hosts_carry_host_and_rank():
    watched = Watched(hosts=("a", "b"))
    watched.screen.take("b", "[1] hello", False)
    assert watched.out.getvalue() == "[b:1] hello\n"


def test_lines_of_an_agent_carry_the_host():
    watched = Watched()
    watched.screen.take("a", "[7] rank 7 does not exist", False)
    watched.screen.take("a", "words", True)
    assert (watched.out.getvalue(), watched.err.getvalue()) == ("[a] [7] rank 7 does not exist\n", "[a] words\n")


def test_colour_is_that_of_the_rank():
    watched = Watched(colour=True)
    watched.screen.take("a", "[0] x", False)
    watched.screen.take("a", "[1] x", False)
    assert watched.out.getvalue() == "\033[36m[0]\033[0m x\n\033[33m[1]\033[0m x\n"


def test_the_failing_ranks_traceback_comes_last_and_once():
    watched = Watched()
    watched.error(f"[1] {TRACE}", '[1]   File "x"', "[1] ValueError: boom")
    watched.error("[0] a warning", "[1] fastsample-launch: rank 1 ended with exit status 1", f"[0] {TRACE}")
    watched.error("[0] KeyError: 3", "[0] fastsample-launch: rank 0 ended with exit status 1", "[0] more")
    assert watched.finish() == [
        "[0] a warning", "[0] more", f"[0] {TRACE}", "[0] KeyError: 3",
        "the end", f"[1] {TRACE}", '[1]   File "x"', "[1] ValueError: boom",
    ]  # fmt: skip


def test_a_broken_connection_is_not_taken_for_the_cause():
    watched = Watched()
    watched.error(f"[0] {TRACE}", "[0] RuntimeError: barrier failed because a peer ended or its connection broke")
    watched.error("[0] fastsample-launch: rank 0 ended with exit status 1")
    watched.error(f"[1] {TRACE}", "[1] ValueError: boom", "[1] fastsample-launch: rank 1 ended with exit status 3")
    first = watched.screen.first_failure()
    assert (first.rank, first.status, first.how) == (1, 3, "ended with exit status 3")
    assert watched.finish()[-1] == "[1] ValueError: boom"


def test_a_killed_rank_is_the_cause_of_others_tracebacks():
    watched = Watched()
    watched.error(f"[0] {TRACE}", "[0] RuntimeError: Connection reset by peer")
    watched.error("[0] fastsample-launch: rank 0 ended with exit status 1")
    watched.error("[1] fastsample-launch: rank 1 was killed by SIGKILL")
    first = watched.screen.first_failure()
    assert (first.rank, first.status, first.how) == (1, 137, "was killed by SIGKILL")
    assert watched.finish() == [f"[0] {TRACE}", "[0] RuntimeError: Connection reset by peer", "the end"]


def test_a_rank_whose_guard_could_not_speak_is_known_by_its_traceback():
    watched = Watched()
    watched.error("[1] rank 1 ends the run:", f"[1] {TRACE}", "[1] ValueError: boom")
    assert watched.screen.first_failure().rank == 1
    assert watched.finish() == ["the end", "[1] rank 1 ends the run:", f"[1] {TRACE}", "[1] ValueError: boom"]


def test_torchs_own_prefix_is_taken_off():
    watched = Watched()
    watched.error(f"[1] [rank1]: {TRACE}", "[1] [rank1]: ValueError: [rank0]: boom", "[1] [rank0]: other")
    assert watched.finish()[1:] == [f"[1] {TRACE}", "[1] ValueError: [rank0]: boom", "[1] [rank0]: other"]


def test_a_traceback_that_was_only_logged_is_shown_after_a_while():
    watched = Watched()
    watched.error(f"[1] {TRACE}", "[1] ValueError: boom")
    watched.now = HOLD_S
    watched.screen.tick()
    assert watched.err.getvalue() == ""
    watched.now = HOLD_S + 0.1
    watched.screen.tick()
    assert watched.err.getvalue() == f"[1] {TRACE}\n[1] ValueError: boom\n"


def test_a_traceback_logged_just_before_success_is_shown():
    watched = Watched()
    watched.error(f"[1] {TRACE}", "[1] ValueError: boom")
    assert watched.finish(summary=None, failed=False) == [f"[1] {TRACE}", "[1] ValueError: boom"]


def test_tracebacks_of_being_interrupted_are_left_out_unless_verbose():
    for verbose, shown in ((False, ["the end"]), (True, [f"[1] {TRACE}", "[1] KeyboardInterrupt", "the end"])):
        watched = Watched(verbose=verbose)
        watched.screen.ending = True
        watched.error(f"[1] {TRACE}", "[1] KeyboardInterrupt")
        assert watched.finish(failed=False) == shown


def test_what_agents_say_after_a_failure_is_left_out_when_a_rank_explains_it():
    watched = Watched()
    watched.error("[1] fastsample-launch: rank 1 was killed by SIGKILL", "E123 api.py: failed", TRACE, "ChildFailed")
    assert watched.finish() == ["the end"]


def test_what_agents_say_is_shown_when_no_rank_explains_it():
    watched = Watched()
    watched.error(TRACE, "OSError: port taken")
    assert watched.finish() == [f"[a] {TRACE}", "[a] OSError: port taken", "the end"]


def test_a_message_of_mpirun_waits_for_the_end_and_is_left_out_when_a_rank_explains_it():
    box = ["-" * 76, "MPI_ABORT was invoked on rank 0", "-" * 76]
    watched = Watched()
    watched.error(*box, " [0] fastsample-launch: rank 0 ended with exit status 1")
    assert watched.finish() == ["the end"]
    watched = Watched()
    watched.error(*box)
    assert watched.finish(summary=None, failed=False) == [f"[a] {line}" for line in box]


def test_a_restart_shows_what_was_held_and_starts_afresh():
    watched = Watched()
    watched.error(f"[1] {TRACE}", "[1] ValueError: boom", "[1] fastsample-launch: rank 1 ended with exit status 1")
    watched.error("[0] fastsample-launch: rank 0 was started again (restart 1)")
    assert watched.err.getvalue().splitlines() == [
        f"[1] {TRACE}", "[1] ValueError: boom", "[1] fastsample-launch: rank 1 ended with exit status 1",
        "[0] fastsample-launch: rank 0 was started again (restart 1)",
    ]  # fmt: skip
    assert watched.screen.first_failure() is None


@pytest.mark.parametrize("rank", ["[2]", "[-1]", "[a:1]", "[1]x"])
def test_what_is_no_rank_is_not_taken_for_one(rank):
    watched = Watched()
    watched.screen.take("a", f"{rank} text", False)
    assert watched.out.getvalue() == f"[a] {rank} text\n"


def test_what_ranks_say_of_an_interrupt_is_left_out_once_the_launcher_has_said_it():
    said = ("fastsample-train: rank 1 was interrupted.", "rank 0 was interrupted.", "mine was interrupted. Really.")
    shown = {}
    for ending, verbose in ((False, False), (True, False), (True, True)):
        err = io.StringIO()
        screen = Screen(io.StringIO(), err, ["here", "here"], verbose=verbose)
        screen.ending = ending
        for line in said:
            screen.take("here", f"[1] {line}", True)
        shown[ending, verbose] = [line.removeprefix("[1] ") for line in err.getvalue().splitlines()]
    assert shown == {(False, False): list(said), (True, False): [said[2]], (True, True): list(said)}


def test_an_output_that_another_process_made_non_blocking_is_waited_for():
    out, into = os.pipe()
    os.set_blocking(into, False)
    with os.fdopen(out, encoding="utf-8") as reader, os.fdopen(into, "w", encoding="utf-8") as stream:
        writer = Writer(stream)
        writer.write("é" * 200_000 + "\n")
        assert reader.readline() == "é" * 200_000 + "\n"
        assert writer.close()


def test_a_stream_in_memory_is_written_too():
    stream = io.StringIO()
    writer = Writer(stream)
    writer.write("one\n")
    writer.write("two\n")
    assert writer.close()
    assert stream.getvalue() == "one\ntwo\n"
