"""Trained models outside of a run: saved models, checkpoints read into a model, predictions by original id."""

import json

import numpy as np
import pytest
import torch

from fastsample_dist import DistContext, DistData, DistLoader
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.testing import run_distributed
from fastsample_dist.train import load_checkpoint, load_model, save_model, write_predictions
from fastsample_dist.train.checkpoint import Checkpointer, CheckpointSettings
from fastsample_dist.train.inference import layerwise
from fastsample_dist.train.saved import build_model, check_directory
from fastsample_dist.train.trainer import Trainer
from tests.small_disk import small_files
from tests.train.task import make_model, make_task

BUILT = {"model": "gat", "feature_dim": 8, "hidden": 12, "num_outputs": 4, "layers": 2, "dropout": 0.25, "heads": 3}


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(7)
    model = build_model(**BUILT)
    save_model(tmp_path / "model.pt", model, BUILT | {"partition": "communities"})
    return model, tmp_path / "model.pt"


@pytest.mark.parametrize("kind", ["sage", "gcn", "gat"])
def test_a_saved_model_is_built_again(tmp_path, kind):
    model = build_model(**BUILT | {"model": kind})
    save_model(tmp_path / "model.pt", model, BUILT | {"model": kind})
    found = load_model(tmp_path / "model.pt")
    assert type(found) is type(model) and not found.training and found.dropout == 0.25
    assert all(map(torch.equal, found.parameters(), model.parameters()))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.pt", "model.pt.json"]


def test_a_saved_deep_model_is_built_again(tmp_path):
    built = BUILT | {"model": "sage", "layers": 4, "residual": True, "norm": "layer"}
    model = build_model(**built)
    save_model(tmp_path / "model.pt", model, built)
    found = load_model(tmp_path / "model.pt")
    assert found.residual and all(map(torch.equal, found.parameters(), model.parameters()))
    assert [name for name, _ in found.named_parameters()] == [name for name, _ in model.named_parameters()]


def test_a_description_without_residual_and_norm_is_of_a_model_without_them(saved):
    model, file = saved
    assert not {"residual", "norm"} & json.loads(file.with_name("model.pt.json").read_text()).keys()
    found = load_model(file)
    assert not found.residual and found.norms is None and found.state_dict().keys() == model.state_dict().keys()


def test_the_file_is_a_plain_state_dict(saved):
    model, file = saved
    state = torch.load(file, weights_only=True)
    assert state.keys() == model.state_dict().keys() and all(map(torch.is_tensor, state.values()))
    assert json.loads(file.with_name("model.pt.json").read_text())["partition"] == "communities"


@pytest.mark.parametrize("size_bytes", [10, 2000])
def test_a_full_disk_is_named_and_the_earlier_model_stays(saved, size_bytes):
    model, file = saved
    before = file.read_bytes()
    with small_files(size_bytes), pytest.raises(OSError, match=rf"File too large: '{file}'$"):
        save_model(file, model, BUILT)
    assert file.read_bytes() == before
    assert sorted(path.name for path in file.parent.iterdir()) == ["model.pt", "model.pt.json"]


def test_files_that_do_not_belong_together_are_refused(saved):
    _, file = saved
    description = file.with_name("model.pt.json")
    description.write_text(json.dumps(BUILT | {"hidden": 24}))
    with pytest.raises(ValueError, match=r"another model: layers\.0\.\w+ was .* and is "):
        load_model(file)
    description.write_text(json.dumps({"model": "gat"}))
    with pytest.raises(ValueError, match=r"model\.pt\.json lacks feature_dim, hidden, .*; it is not a description"):
        load_model(file)
    description.write_text("{")
    with pytest.raises(ValueError, match=r"model\.pt\.json is not JSON; save the model again"):
        load_model(file)
    description.unlink()
    with pytest.raises(ValueError, match=r"model\.pt\.json cannot be read \(No such file or directory\)"):
        load_model(file)


def test_a_damaged_model_is_refused(saved):
    _, file = saved
    file.write_bytes(file.read_bytes()[:-50])
    with pytest.raises(ValueError, match=r"model\.pt cannot be read as a model \(\w+\); save it again"):
        load_model(file)


def test_a_checkpoint_is_read_into_a_model(tmp_path):
    task, directory = make_task(tmp_path, 1, dtype="float32"), tmp_path / "saved"
    with DistContext(LocalCommunicator()) as ctx:
        loader, model = DistLoader(DistData.load(task.path, ctx), (3, 3), 60), make_model("sage").float()
        trainer = Trainer(model, torch.optim.Adam(model.parameters(), lr=0.01), ctx)
        settings = CheckpointSettings(directory=directory, every=1, options={"lr": 0.01})
        checkpoints = Checkpointer(trainer, loader, settings)
        checkpoints.begin(resume=False)
        trainer.run_epoch(loader, checkpoints.on_step)
    for path in (directory, directory / "step-000000002.ckpt"):
        other = make_model("sage", seed=4).float()
        found = load_checkpoint(path, other)
        assert (found["step"], found["epoch"], found["world_size"], found["graph"]) == (2, 0, 1, "communities")
        assert found["path"].endswith("step-000000002.ckpt") and found["options"] == {"lr": 0.01}
        assert all(map(torch.equal, other.parameters(), model.parameters()))
    with pytest.raises(ValueError, match=r"step-000000002\.ckpt does not fit: another model: "):
        load_checkpoint(directory, make_model("gcn").float())
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no checkpoint; pass the directory that --checkpoint-dir named"):
        load_checkpoint(tmp_path / "empty", other)
    with pytest.raises(ValueError, match="is not a valid checkpoint: it does not begin like a checkpoint"):
        load_checkpoint(task.path / "manifest.json", other)
    with pytest.raises(ValueError, match="nowhere is not there; pass a checkpoint or the directory that holds it"):
        load_checkpoint(tmp_path / "nowhere", other)


def predict(ctx, path, directory):
    write_predictions(make_model("sage", seed=3), DistData.load(path, ctx), directory, 30)


def test_a_description_that_is_no_json_leaves_the_saved_model_alone(tmp_path):
    model = build_model(
        **(built := dict(model="sage", feature_dim=4, hidden=8, num_outputs=3, layers=2, dropout=0.0, heads=1))
    )
    save_model(tmp_path / "m.pt", model, built | {"hidden": np.int64(built["hidden"])})
    before = (tmp_path / "m.pt").stat().st_mtime_ns
    with pytest.raises(ValueError, match="^built cannot be written as JSON .*; pass numbers, text and lists"):
        save_model(tmp_path / "m.pt", model, built | {"dtype": torch.float32})
    assert (tmp_path / "m.pt").stat().st_mtime_ns == before
    assert load_model(tmp_path / "m.pt").num_layers == built["layers"]


def test_predictions_without_a_directory_are_refused_before_anything_is_computed():
    with pytest.raises(ValueError, match="^directory is None; expected a path, such as 'predictions'"):
        write_predictions(None, None, None)


def test_predictions_of_ranks_are_those_of_one_process_by_original_id(tmp_path):
    scores = {}
    for parts in (1, 2):
        (tmp_path / str(parts)).mkdir()
        path, found = make_task(tmp_path / str(parts), parts).path, tmp_path / f"found{parts}"
        run_distributed(parts, predict, args=(path, found))
        names = [name for part in range(parts) for name in (f"part-{part}-orig_ids.npy", f"part-{part}.npy")]
        assert sorted(file.name for file in found.iterdir()) == names
        ids, rows = (np.concatenate([np.load(found / name) for name in names[kind::2]]) for kind in (0, 1))
        assert ids.dtype == np.int64 and sorted(ids) == list(range(200)) and rows.shape == (200, 4)
        scores[parts] = rows[np.argsort(ids)]
    np.testing.assert_allclose(scores[1], scores[2], rtol=0, atol=1e-12)
    with DistContext(LocalCommunicator()) as ctx:
        data = DistData.load(tmp_path / "1" / "parts", ctx)
        expected = layerwise(make_model("sage", seed=3), data, 30)[torch.argsort(data.orig_ids(torch.arange(200)))]
    np.testing.assert_allclose(scores[1], expected.numpy(), rtol=0, atol=1e-12)


def test_a_directory_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"--predictions .*file/x cannot be written \(Not a directory\); pass another"):
        check_directory("--predictions", tmp_path / "file" / "x")
