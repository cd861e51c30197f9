"""Damaged suites through the command line: one clear error, exit code 2, nothing written."""

from __future__ import annotations

import json
import shutil

import datasets
import pytest
import torch
from harness import COPY, cli, copy_toy, edit_json, edit_tensors, files_under, truncate

NAME = "vision_model.encoder.layers.0.mlp.fc1.weight"


def in_expert(change):
    return lambda root: edit_tensors(root / "experts/north", change)


def in_base(change):
    return lambda root: edit_tensors(root / "base", change)


def in_labels(change):
    return lambda root: edit_json(root / "labels/north.json", change)


def in_data(change, split="test"):
    """Rewrite a split of task north after ``change`` has mapped its data set."""

    def damage(root):
        path = root / f"data/north/{split}.parquet"
        table = datasets.Dataset.from_parquet(str(path), cache_dir=str(root / "cache"))
        change(table.cast_column("image", datasets.Image(decode=False))).to_parquet(str(path))
        shutil.rmtree(root / "cache")

    return damage


def spoil(number):
    return lambda tensors: tensors[NAME].view(-1)[:2].fill_(number)


def labels_as_numbers(value):
    def change(table):
        table = table.cast_column("label", datasets.Value("int64"))
        labels = [value, *table["label"][1:]]
        features = datasets.Features({**table.features, "label": datasets.Value("int64")})
        return datasets.Dataset.from_dict(
            {"image": list(table["image"]), "label": labels}, features=features
        )

    return change


def broken_image(table):
    images = [{"bytes": b"not an image", "path": None}, *table["image"][1:]]
    return datasets.Dataset.from_dict(
        {"image": images, "label": list(table["label"])}, features=table.features
    )


def tower_only(tensors):
    for name in [n for n in tensors if not n.startswith("vision_model.")]:
        del tensors[name]


EXPERTS = {
    "truncated": (
        lambda root: truncate(root / "experts/north/model.safetensors"),
        ["experts/north/model.safetensors", "is damaged", "fetch it again"],
    ),
    "no file": (
        lambda root: (root / "experts/north/model.safetensors").unlink(),
        ["experts/north/model.safetensors", "does not exist", "config.json"],
    ),
    "no folder": (
        lambda root: shutil.rmtree(root / "experts/north"),
        ["experts/north", "does not exist"],
    ),
    "missing tensor": (
        in_expert(lambda tensors: tensors.pop(NAME)),
        ["expert 'north'", "lacks 1 of the base model's 39", NAME, "must hold the base's vision"],
    ),
    "extra tensor": (
        in_expert(lambda tensors: tensors.update({"vision_model.extra": torch.zeros(2)})),
        ["expert 'north'", "has 1 parameters that the base model lacks", "vision_model.extra"],
    ),
    "misshaped tensor": (
        in_expert(lambda tensors: tensors.update({NAME: torch.zeros(3, 3)})),
        ["expert 'north'", NAME, "(3, 3)", "(64, 32)", "fine-tuned from another backbone"],
    ),
    "NaN": (
        in_expert(spoil(float("nan"))),
        ["expert 'north'", NAME, "2 NaN or infinite values of 2048", "leave this task out"],
    ),
    "infinity": (
        in_expert(spoil(float("inf"))),
        ["expert 'north'", NAME, "2 NaN or infinite values of 2048"],
    ),
    "config not JSON": (
        lambda root: (root / "experts/north/config.json").write_text("{"),
        ["experts/north/config.json"],
    ),
    "other activation": (
        lambda root: edit_json(
            root / "experts/north/config.json", lambda c: c.update(hidden_act="gelu")
        ),
        ["expert 'north'", "'gelu'", "'quick_gelu'"],
    ),
}
BASE = {
    "truncated": (
        lambda root: truncate(root / "base/model.safetensors"),
        ["base/model.safetensors", "damaged"],
    ),
    "no folder": (lambda root: shutil.rmtree(root / "base"), ["/base", "does not exist"]),
    "no weights": (
        lambda root: (root / "base/model.safetensors").unlink(),
        ["base/model.safetensors", "does not exist"],
    ),
    "only a tower": (
        in_base(tower_only),
        ["/base", "lacks 23 of the base model's 62", "full CLIPModel", "random projection"],
    ),
    "missing tensor": (in_base(lambda tensors: tensors.pop(NAME)), ["/base", NAME]),
    "missing text tensor": (
        in_base(lambda tensors: tensors.pop("text_projection.weight")),
        ["/base", "text_projection.weight"],
    ),
    "NaN": (in_base(spoil(float("nan"))), ["base", NAME, "NaN"]),
    "config not JSON": (
        lambda root: (root / "base/config.json").write_text("{"),
        ["base/config.json"],
    ),
    "no config": (lambda root: (root / "base/config.json").unlink(), ["config.json"]),
    "no tokenizer": (lambda root: (root / "base/tokenizer.json").unlink(), ["/base", "tokenizer"]),
    "no processor": (
        lambda root: (root / "base/preprocessor_config.json").unlink(),
        ["/base", "preprocessor_config.json"],
    ),
}
DATA = {
    "no folder": (
        lambda root: shutil.rmtree(root / "data/north"),
        ["task 'north'", "data/north", "does not exist"],
    ),
    "no test file": (
        lambda root: (root / "data/north/test.parquet").unlink(),
        ["task 'north'", "'test'", "cannot be read"],
    ),
    "truncated train": (
        lambda root: truncate(root / "data/north/train.parquet"),
        ["task 'north'", "data/north", "cannot be read", "fetch the files again"],
    ),
    "truncated test": (
        lambda root: truncate(root / "data/north/test.parquet"),
        ["task 'north'", "data/north", "cannot be read", "fetch the files again"],
    ),
    "no label column": (
        lambda root: [
            in_data(lambda table: table.rename_column("label", "target"), split)(root)
            for split in ("train", "validation", "test")
        ],
        ["task 'north'", "lacks the columns ['label']", "'target'"],
    ),
    "label too large": (
        in_data(labels_as_numbers(4)),
        ["task 'north'", "1 labels lie outside its list of 4 classes", "first: 4", "0 to 3"],
    ),
    "label below zero": (
        in_data(labels_as_numbers(-1)),
        ["task 'north'", "1 labels lie outside its list of 4 classes", "first: -1"],
    ),
    "no label": (in_data(labels_as_numbers(None)), ["task 'north'", "label"]),
    "broken image": (in_data(broken_image), ["north", "test", "image", "damaged"]),
}
LABELS = {
    "no file": (
        lambda root: (root / "labels/north.json").unlink(),
        ["task 'north'", "labels/north.json"],
    ),
    "not JSON": (
        lambda root: (root / "labels/north.json").write_text("{"),
        ["task 'north'", "labels/north.json", "JSON"],
    ),
    "no classes": (in_labels(lambda c: c.pop("classes")), ["task 'north'", "'classes'"]),
    "no templates": (in_labels(lambda c: c["templates"].clear()), ["task 'north'", "empty list"]),
    "too short": (
        in_labels(lambda c: c["classes"].pop()),
        ["task 'north'", "class list has 3 names, the data set has 4"],
    ),
    "too long": (
        in_labels(lambda c: c["classes"].append("five")),
        ["task 'north'", "class list has 5 names, the data set has 4"],
    ),
    "other order": (
        in_labels(lambda c: c["classes"].reverse()),
        ["task 'north'", "another order", "class 0 is 'four', the data set says 'one'"],
    ),
    "twice": (
        in_labels(lambda c: c.update(classes=["one", "two", "three", "one"])),
        ["task 'north'", "lists ['one'] twice"],
    ),
    "template without a place": (
        in_labels(lambda c: c.update(templates=["a {thing} of north"])),
        ["task 'north'", "template"],
    ),
}
CASES = [
    pytest.param(*case, id=f"{kind}: {name}")
    for kind, cases in (("expert", EXPERTS), ("base", BASE), ("data", DATA), ("labels", LABELS))
    for name, case in cases.items()
]


@pytest.mark.parametrize(("damage", "fragments"), CASES)
def test_a_damaged_suite_is_refused_before_anything_is_written(
    damage, fragments, tmp_path, monkeypatch, capsys
):
    damage(copy_toy(tmp_path, monkeypatch))
    results = tmp_path / "results"
    code = cli("run", "smoke", "--suite", COPY, results=results)
    message = capsys.readouterr().err
    assert message.startswith("error: "), message
    assert [part for part in fragments if part not in message] == [], message
    assert (code, files_under(results)) == (2, [])


def test_a_damaged_validation_split_is_refused_by_a_sweep_that_reads_it(
    tmp_path, monkeypatch, capsys
):
    root = copy_toy(tmp_path, monkeypatch)
    truncate(root / "data/north/validation.parquet")
    results = tmp_path / "results"
    arguments = ("tune-featcal", "--suite", COPY, "--n", "4", "--only", "merger=base")
    assert cli("run", *arguments, results=results) == 2
    assert "task 'north'" in capsys.readouterr().err
    assert files_under(results) == []


def test_an_error_is_one_line_without_a_traceback(tmp_path, monkeypatch, capsys):
    root = copy_toy(tmp_path, monkeypatch)
    (root / "labels/north.json").write_text(json.dumps({"classes": [], "templates": []}))
    cli("run", "smoke", "--suite", COPY, results=tmp_path / "results")
    message = capsys.readouterr().err
    assert "Traceback" not in message
    assert message.count("error: ") == 1
