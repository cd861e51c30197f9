"""Reading towers and bases from disk: names, the base's projection, one expert at a time."""

from __future__ import annotations

import gc
import shutil
import weakref

import pytest
import torch
from harness import NAMES, copy_toy, edit_json, edit_tensors, fresh, suite_at, toy, toy_root
from safetensors.torch import load_file

from benchmarks.checkpoints import Checkpoint, DiskExperts, TowerFile, canonical, config_of
from merging import Pool, calibrate, merge

PROJECTION = "visual_projection.weight"


def same(ours, theirs):
    """Whether two state dicts hold the same names and the same bits."""
    return ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in ours)


def disk_experts(kind=DiskExperts, **options):
    suite = toy()
    base = suite.base_model()
    shapes = {n: tuple(t.shape) for n, t in base.state_dict().items() if canonical(n)}
    files = {
        t.name: TowerFile(f"expert {t.name!r}", t.expert.folder(), shapes) for t in suite.tasks
    }
    return kind(files, base, **options)


def pool_with(experts, n=8):
    shared = toy().pool(n, "train", 0)
    return Pool(shared.base, experts, shared.calibration, 0, shared.exclude)


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        ("vision_model.post_layernorm.bias", "vision_model.post_layernorm.bias"),
        ("post_layernorm.bias", "vision_model.post_layernorm.bias"),
        ("pre_layrnorm.weight", "vision_model.pre_layrnorm.weight"),
        ("encoder.layers.0.mlp.fc1.bias", "vision_model.encoder.layers.0.mlp.fc1.bias"),
        ("embeddings.class_embedding", "vision_model.embeddings.class_embedding"),
        ("vision_model.embeddings.position_ids", None),
        ("embeddings.position_ids", None),
        ("visual_projection.weight", None),
        ("text_model.encoder.layers.0.mlp.fc1.bias", None),
        ("logit_scale", None),
    ],
)
def test_a_stored_name_has_one_canonical_name_or_none(stored, name):
    assert canonical(stored) == name


def test_a_checkpoint_in_an_absent_folder_is_not_looked_for_on_the_hub(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"checkpoint folder .*absent does not exist"):
        Checkpoint(str(tmp_path / "absent")).folder()


def test_a_config_that_is_not_json_is_named(tmp_path):
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(ValueError, match=r"cannot read .*config\.json"):
        config_of(tmp_path)


def test_two_loads_give_the_same_weights():
    torch.manual_seed(1)
    first = fresh()
    states = [first.base_model().state_dict(), *(first.experts()[n].state_dict() for n in NAMES)]
    torch.manual_seed(2)
    second = fresh()
    again = [second.base_model().state_dict(), *(second.experts()[n].state_dict() for n in NAMES)]
    assert [same(a, b) for a, b in zip(states, again, strict=True)] == [True] * 4


def test_the_base_holds_the_tensors_of_its_file():
    stored, model = load_file(toy_root() / "base/model.safetensors"), toy().base_model()
    assert PROJECTION in model.state_dict()
    assert all(torch.equal(tensor, stored[n]) for n, tensor in model.state_dict().items())
    assert not model.training


@pytest.mark.parametrize("task", NAMES)
def test_an_expert_holds_its_own_tower_and_the_projection_of_the_base(task):
    stored = load_file(toy_root() / f"experts/{task}/model.safetensors")
    projection = load_file(toy_root() / "base/model.safetensors")[PROJECTION]
    assert PROJECTION not in stored
    assert same(toy().experts()[task].state_dict(), stored | {PROJECTION: projection})


def test_a_projection_in_an_experts_file_is_ignored(tmp_path, monkeypatch):
    root = copy_toy(tmp_path, monkeypatch)
    edit_tensors(root / "experts/north", lambda t: t.update({PROJECTION: torch.ones(24, 32)}))
    expert = suite_at(root).experts()["north"]
    assert same(expert.state_dict(), toy().experts()["north"].state_dict())


def test_experts_of_transformers_5_without_the_prefix_load_to_the_same_weights(
    tmp_path, monkeypatch
):
    root = copy_toy(tmp_path, monkeypatch)

    def flatten(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("vision_model.")] = tensors.pop(name)

    edit_tensors(root / "experts/east", flatten)
    assert set(load_file(root / "experts/east/model.safetensors")) >= {"post_layernorm.bias"}
    expert = suite_at(root).experts()["east"]
    assert same(expert.state_dict(), toy().experts()["east"].state_dict())


@pytest.mark.parametrize("name", ["vision_model.embeddings.position_ids", "position_ids"])
def test_position_ids_in_a_file_are_ignored(name, tmp_path, monkeypatch):
    root = copy_toy(tmp_path, monkeypatch)
    for folder in ("base", "experts/west"):
        edit_tensors(root / folder, lambda t: t.update({name: torch.arange(5)[None]}))
    suite = suite_at(root)
    assert same(suite.base_model().state_dict(), toy().base_model().state_dict())
    assert same(suite.experts()["west"].state_dict(), toy().experts()["west"].state_dict())


def test_half_precision_files_are_read_in_float32(tmp_path, monkeypatch):
    root = copy_toy(tmp_path, monkeypatch)

    def halve(tensors):
        tensors.update({name: tensor.half() for name, tensor in tensors.items()})

    for folder in ("base", "experts/north"):
        edit_tensors(root / folder, halve)
    suite = suite_at(root)
    for model, exact in (
        (suite.base_model(), toy().base_model()),
        (suite.experts()["north"], toy().experts()["north"]),
    ):
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, exact.state_dict()[name].half().float()), name


def test_an_activation_nested_in_an_experts_config_is_compared_too(tmp_path, monkeypatch):
    root = copy_toy(tmp_path, monkeypatch)

    def nest(config):
        config["vision_config"] = {"hidden_act": "gelu"}
        del config["hidden_act"]

    edit_json(root / "experts/north/config.json", nest)
    with pytest.raises(ValueError, match=r"expert 'north' .* hidden_act 'gelu'.*'quick_gelu'"):
        suite_at(root).experts()


def test_a_base_that_holds_only_a_tower_is_refused(tmp_path, monkeypatch):
    root = copy_toy(tmp_path, monkeypatch)
    shutil.copy(root / "experts/north/model.safetensors", root / "base/model.safetensors")
    with pytest.raises(ValueError, match=r"lacks 23 of .* it must be a full CLIPModel"):
        suite_at(root).base_model()


def test_experts_are_kept_if_they_fit_and_read_again_if_not():
    kept, read = disk_experts(), disk_experts(keep_bytes=0)
    assert kept["north"] is kept["north"]
    assert read["north"] is not read["north"]
    assert same(kept["north"].state_dict(), read["north"].state_dict())


@pytest.mark.parametrize("method", ["average", "task_arithmetic", "ties", "dare"])
def test_merging_is_the_same_whether_experts_are_kept_or_read_again(method):
    kept, read = (merge(method, pool_with(disk_experts(keep_bytes=size))) for size in (1 << 30, 0))
    assert same(kept.model.state_dict(), read.model.state_dict())


def test_featcal_is_the_same_whether_experts_are_kept_or_read_again():
    states = []
    for size in (1 << 30, 0):
        pool = pool_with(disk_experts(keep_bytes=size))
        states.append(calibrate("featcal", merge("average", pool), pool).model.state_dict())
    assert same(*states)
    assert not same(states[0], merge("average", pool).model.state_dict())


def test_one_block_of_an_expert_that_is_not_kept_reads_only_its_tensors(monkeypatch):
    path, asked, original = "vision_model.encoder.layers.1", [], TowerFile.read

    def observed(file, prefix=""):
        result = original(file, prefix)
        asked.append((file.what, prefix, sorted(result)))
        return result

    monkeypatch.setattr(TowerFile, "read", observed)
    block = disk_experts(keep_bytes=0).submodule("east", path)
    ((what, prefix, names),) = asked
    assert (what, prefix) == ("expert 'east'", f"{path}.")
    assert names == sorted(f"{path}.{name}" for name in block.state_dict())
    whole = toy().experts()["east"].get_submodule(path)
    assert same(block.state_dict(), whole.state_dict())


def test_the_second_block_is_not_read_with_the_twelfth(tmp_path):
    tower = TowerFile.__new__(TowerFile)
    tower.what, tower.folder = "tower", toy_root() / "experts/north"
    stored = "vision_model.encoder.layers.1.mlp.fc1.bias"
    tower.names = {stored: stored, stored.replace("1.mlp", "11.mlp"): stored}
    assert list(tower.read("vision_model.encoder.layers.1.")) == [stored]


class Watched(DiskExperts):
    """Counts the whole experts that are alive whenever one has been loaded."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.seen, self.most = [], 0

    def __getitem__(self, task):
        model = super().__getitem__(task)
        self.seen.append(weakref.ref(model))
        if self._alive() > max(1, self.most):
            gc.collect()  # slow, so only where it can matter
        self.most = max(self.most, self._alive())
        return model

    def _alive(self):
        return sum(ref() is not None for ref in self.seen)


@pytest.mark.parametrize("method", ["average", "task_arithmetic", "ties", "dare", "dare:then=ties"])
def test_at_most_one_expert_is_alive_while_merging_if_none_is_kept(method):
    experts = disk_experts(Watched, keep_bytes=0)
    merge(method, pool_with(experts, n=0))
    assert len(experts.seen) >= 2 * len(NAMES)  # checked, then merged
    assert experts.most == 1


def test_featcal_never_holds_all_experts_if_none_is_kept():
    experts = disk_experts(Watched, keep_bytes=0)
    pool = pool_with(experts)
    calibrate("featcal", merge("average", pool), pool)
    assert experts.most < len(NAMES)


def test_time_spent_reading_is_counted():
    experts = disk_experts(keep_bytes=0)
    assert experts.seconds == 0
    _ = experts["north"]
    once = experts.seconds
    experts.submodule("north", "vision_model.encoder")
    assert 0 < once < experts.seconds
