"""The toy suite on the real loading path: calibration sets, heads, predictions, fingerprints."""

from __future__ import annotations

import dataclasses
import os
import shutil

import pytest
import torch
from harness import NAMES, copy_toy, edit_json, fresh, suite_at, toy, toy_root
from transformers import AutoTokenizer, CLIPImageProcessor, CLIPModel

from benchmarks.suites import SUITES, suite_named
from benchmarks.suites.clip import ClipSuite


def indices(suite, n, *, task="north", seed=0, split="train"):
    return suite.calibration_indices(suite.task(task), n, split, seed)


def test_the_toy_suite_is_a_clip_suite_with_three_tasks_on_disk():
    suite = toy()
    assert isinstance(suite, ClipSuite)
    assert [task.name for task in suite.tasks] == ["north", "east", "west"]
    assert all(task.expert.folder().parent.parent == toy_root() for task in suite.tasks)
    suite.check()


def test_a_built_suite_is_used_again():
    before = os.stat(toy_root()).st_mtime_ns
    fresh().check()
    assert os.stat(toy_root()).st_mtime_ns == before
    assert [p.name for p in toy_root().parent.iterdir()] == [toy_root().name]


@pytest.mark.parametrize("seed", [0, 1])
def test_calibration_sets_are_nested_in_n(seed):
    suite = toy()
    largest = indices(suite, 64, seed=seed)
    assert sorted(largest) == list(range(64))
    assert all(indices(suite, n, seed=seed) == largest[:n] for n in (1, 2, 8, 33))


def test_calibration_sets_differ_by_seed_and_by_task():
    suite = toy()
    drawn = [indices(suite, 16, task=task, seed=seed) for task in NAMES for seed in (0, 1, 2)]
    assert len({tuple(d) for d in drawn}) == 9


def test_calibration_sets_do_not_depend_on_the_global_generator():
    suite = toy()
    torch.manual_seed(1)
    first = indices(suite, 16)
    torch.manual_seed(2)
    assert indices(suite, 16) == first


def test_another_suite_draws_other_calibration_sets():
    assert indices(suite_at(toy_root(), "other"), 16) != indices(toy(), 16)


def test_adding_a_task_moves_no_calibration_set():
    suite = fresh()
    before = [indices(suite, 16, task=task) for task in NAMES]
    extra = dataclasses.replace(suite.tasks[0], name="south")
    suite.tasks = (extra, *suite.tasks)
    assert [indices(suite, 16, task=task) for task in NAMES] == before


def test_a_calibration_set_larger_than_the_split_is_refused_with_both_sizes():
    message = "task 'east': 65 calibration examples .* its train split has 64; choose n of at most"
    with pytest.raises(ValueError, match=message):
        indices(toy(), 65, task="east")
    with pytest.raises(ValueError, match="task 'north': 65 calibration examples"):
        toy().pool(65, "train", 0)


def test_an_unknown_task_names_the_nearest():
    with pytest.raises(KeyError, match=r"task of suite toy 'nroth'; did you mean 'north'"):
        toy().task("nroth")


def test_an_unknown_suite_names_the_nearest():
    with pytest.raises(KeyError, match=r"unknown suite 'toi'; did you mean 'toy'.*mini-clip8"):
        suite_named("toi")


def test_the_device_is_set_by_name():
    assert (suite_named("toy", "cpu").device, SUITES["toy"]().device) == ("cpu", "cpu")


def test_batches_hold_pixels_and_no_labels():
    pool = toy().pool(8, "train", 0)
    assert sorted(pool.calibration) == sorted(NAMES)
    for batches in pool.calibration.values():
        assert [list(batch) for batch in batches] == [["pixel_values"]]
        assert batches[0]["pixel_values"].shape == (8, 3, 16, 16)


def test_a_pool_for_methods_without_data_decodes_nothing():
    suite = fresh()
    assert dict(suite.pool(0, "", 0).calibration) == {}
    assert suite._datasets == {}


def test_calibration_batches_are_the_images_at_the_indices():
    suite, other = toy(), fresh()
    other.pixels(other.task("west"), "train")  # kept whole, then indexed
    whole = suite._inputs(fresh().pixels(suite.task("west"), "train"))["pixel_values"]
    for chosen in (suite, other):
        (batch,) = chosen.pool(8, "train", 3).calibration["west"]
        assert torch.equal(batch["pixel_values"], whole[indices(suite, 8, task="west", seed=3)])


def test_calibration_batches_are_cut_to_a_number_of_tokens(monkeypatch):
    monkeypatch.setattr("benchmarks.suites.clip.TOKENS_PER_BATCH", 16)  # 5 tokens an image
    suite = toy()
    batches = suite.batches(suite.task("north"), "train", range(7))
    assert [len(batch["pixel_values"]) for batch in batches] == [3, 3, 1]


@pytest.mark.parametrize(("split", "size"), [("validation", 32), ("test", 48)])
def test_predictions_cover_the_whole_split_in_order(split, size):
    suite = fresh()
    suite.batch_size = 10
    predictions = suite.predict(suite.base_model(), suite.tasks[2], split)
    assert predictions.scores.shape == (size, 4)
    assert list(predictions.targets) == list(suite._dataset(suite.tasks[2], split)["label"])
    whole = toy().predict(toy().base_model(), toy().tasks[2], split)
    assert torch.allclose(predictions.scores, whole.scores, atol=1e-4)


def test_with_one_template_scores_are_clips_own_logits(tmp_path, monkeypatch):
    root = copy_toy(tmp_path, monkeypatch)
    template = "a {} of east"
    edit_json(root / "labels/east.json", lambda c: c.update(templates=[template]))
    suite = suite_at(root)
    task = suite.task("east")
    clip, tokens = (
        CLIPModel.from_pretrained(root / "base", dtype=torch.float32),
        AutoTokenizer.from_pretrained(root / "base"),
    )
    images = [image.convert("RGB") for image in suite._dataset(task, "test")["image"]]
    processor = CLIPImageProcessor.from_pretrained(root / "base")
    texts = tokens([template.format(c) for c in suite.prompts(task)[0]], return_tensors="pt")
    with torch.inference_mode():
        expected = clip(
            input_ids=texts["input_ids"],
            attention_mask=texts["attention_mask"],
            pixel_values=processor(images, return_tensors="pt")["pixel_values"],
        ).logits_per_image
    got = suite.predict(suite.base_model(), task, "test").scores
    assert (got - expected).abs().max() <= 1e-4


def test_a_head_is_the_scaled_direction_of_the_mean_over_templates():
    suite = toy()
    clip = CLIPModel.from_pretrained(toy_root() / "base", dtype=torch.float32)
    tokens = AutoTokenizer.from_pretrained(toy_root() / "base")
    with torch.inference_mode():
        for row, name in enumerate(("one", "two", "three", "four")):
            directions = []
            for template in ("a {} of west", "{} of west"):  # alone, so without padding
                ids = tokens([template.format(name)], return_tensors="pt")["input_ids"]
                text = clip.text_projection(clip.text_model(input_ids=ids).pooler_output)[0]
                directions.append(text / text.norm())
            mean = (directions[0] + directions[1]) / 2
            expected = clip.logit_scale.exp() * mean / mean.norm()
            assert torch.allclose(suite.head(suite.task("west"))[row], expected, atol=1e-4)


def test_heads_belong_to_the_base_whatever_model_predicts():
    suite = toy()
    before = suite.head(suite.tasks[0]).clone()
    suite.predict(suite.experts()["north"], suite.tasks[0], "test")
    assert torch.equal(suite.head(suite.tasks[0]), before)


def test_prediction_leaves_no_gradient_behind():
    scores = toy().predict(toy().base_model(), toy().tasks[0], "test").scores
    assert scores.is_inference()


def test_the_fingerprint_is_of_contents_and_not_of_the_place(tmp_path, monkeypatch):
    root = copy_toy(tmp_path, monkeypatch)
    assert suite_at(root).fingerprint() == suite_at(root).fingerprint()
    moved = shutil.copytree(root, tmp_path / "moved")
    assert suite_at(moved).fingerprint() == suite_at(root).fingerprint()


@pytest.mark.parametrize(
    "file",
    [
        "labels/north.json",
        "base/preprocessor_config.json",
        "base/model.safetensors",
        "experts/west/model.safetensors",
        "data/east/train.parquet",
    ],
)
def test_a_change_in_any_file_changes_the_fingerprint(file, tmp_path, monkeypatch):
    root = copy_toy(tmp_path, monkeypatch)
    before = suite_at(root).fingerprint()
    data = bytearray((root / file).read_bytes())
    data[-2] ^= 1
    (root / file).write_bytes(data)
    assert suite_at(root).fingerprint() != before
