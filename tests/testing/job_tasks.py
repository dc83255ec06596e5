"""Tasks that ranks run in the tests of this room: some do what they should, the others are damaged on purpose."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import torch

from fastsample_dist.graph import storage
from fastsample_dist.pipeline.data import DistData
from fastsample_dist.sampling.neighbor import NeighborSampler
from fastsample_dist.verify import rank as verify_rank_module
from fastsample_dist.verify.rank import verify_rank


def greet(ctx, settings, folder):
    (folder / f"left-{ctx.rank}").write_text(settings["word"])
    return {"rank": ctx.rank, "world_size": ctx.world_size, "word": settings["word"]}


def raise_on(ctx, settings, folder):
    if ctx.rank == settings["rank"]:
        raise (ValueError if settings["refusal"] else RuntimeError)(f"rank {ctx.rank} does not want")
    ctx.comm.barrier()
    return {}


def kill_on(ctx, settings, folder):
    if ctx.rank == settings["rank"]:
        os.kill(os.getpid(), signal.SIGKILL)
    ctx.comm.barrier()
    return {}


def exit_silently(ctx, settings, folder):
    os._exit(7)


def sleep_on(ctx, settings, folder):
    Path(settings["file"] + str(ctx.rank)).write_text(f"{os.getpid()} {folder}")
    while ctx.rank == settings["rank"]:
        time.sleep(0.05)
    return {}


def verify_with_another_seed_on_rank_1(ctx, settings, folder):
    """The hybrid sampler of rank 1 draws step 2 with the key of another step."""
    true_sample = NeighborSampler.sample

    def sample(self, seeds, step=0):
        return true_sample(self, seeds, 1000 if step == 2 else step)

    if ctx.rank == 1:
        NeighborSampler.sample = sample
    return verify_rank(ctx, settings, folder)


def verify_with_an_altered_feature(ctx, settings, folder):
    """Of part 1's first row one number is one bit off, as its owner reads it."""
    return _verify_with_part(1, _alter_feature, ctx, settings, folder)


def verify_with_altered_labels(ctx, settings, folder):
    """All labels of part 3 are others, as its owner reads them."""
    return _verify_with_part(3, lambda own: replace(own, labels=(own.labels + 1) % 4), ctx, settings, folder)


def _alter_feature(own):
    features = own.features.clone()
    features[0, 2] = torch.nextafter(features[0, 2], torch.tensor(float("inf")))
    return replace(own, features=features)


def _verify_with_part(number, change, ctx, settings, folder):
    true_load = storage.load_part

    def load_part(path, manifest, part):
        own = true_load(path, manifest, part)
        return change(own) if part == number else own

    storage.load_part = load_part
    return verify_rank(ctx, settings, folder)


def verify_with_a_loss_too_large(ctx, settings, folder):
    """Rank 0 counts its loss a hundred-thousandth too much."""
    true_loss = verify_rank_module.compared_loss
    if ctx.rank == 0:
        verify_rank_module.compared_loss = lambda *args: true_loss(*args) * (1 + 1e-5)
    return verify_rank(ctx, settings, folder)


def load_own(ctx, settings, folder):
    data = DistData.load(settings["path"], ctx)
    return {"own_range": data.own_range, "interface": os.environ["GLOO_SOCKET_IFNAME"]}


def send_megabytes(ctx, settings, folder):
    rows = torch.zeros((ctx.world_size * settings["megabytes"], 10**6), dtype=torch.uint8)
    started = time.perf_counter()
    ctx.comm.all_to_all_rows(rows, [settings["megabytes"]] * ctx.world_size, purpose="rows")
    return {"seconds": time.perf_counter() - started}


def reduce_until_it_fails(ctx, settings, folder):
    while True:
        ctx.comm.all_reduce(torch.ones(1000), purpose="gradients")
        Path(settings["file"] + str(ctx.rank)).touch()
        time.sleep(0.01)
