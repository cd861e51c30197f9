"""Images and labels of a data set: decoding, the processor's arithmetic, class lists."""

from __future__ import annotations

import datasets
import numpy as np
import pytest
import torch
from harness import toy, toy_root
from PIL import Image
from transformers import CLIPImageProcessor

from benchmarks.images import checked_labels, decode, load_split, normalise


def pictures(count, width, height, mode="RGB", seed=0):
    draw = np.random.default_rng(seed)
    arrays = draw.integers(0, 256, (count, height, width, 3), dtype=np.uint8)
    return [Image.fromarray(array).convert(mode) for array in arrays]


def as_dataset(images):
    features = datasets.Features(image=datasets.Image(), label=datasets.Value("int64"))
    content = {"image": images, "label": [0] * len(images)}
    return datasets.Dataset.from_dict(content, features=features)


@pytest.fixture(scope="module")
def processor():
    return CLIPImageProcessor.from_pretrained(toy_root() / "base")


@pytest.mark.parametrize("split", ["train", "test"])
def test_pixels_then_normalised_are_the_processors_own_output(split, processor):
    suite = toy()
    task = suite.tasks[1]
    table = datasets.Dataset.from_parquet(str(toy_root() / f"data/{task.name}/{split}.parquet"))
    expected = processor([i.convert("RGB") for i in table["image"]], return_tensors="pt")
    pixels = suite.pixels(task, split)
    got = normalise(pixels, processor.image_mean, processor.image_std)
    assert pixels.dtype == torch.uint8
    assert (got - expected["pixel_values"]).abs().max() <= 1e-6


@pytest.mark.parametrize("size", [(16, 16), (31, 20), (9, 40)])
def test_resized_and_cropped_pixels_equal_the_processors_to_a_rounding_step(size, processor):
    images = pictures(3, *size)
    got = decode(as_dataset(images), processor, range(3), "here")
    expected = processor(images, return_tensors="pt", do_normalize=False)["pixel_values"]
    assert got.shape == (3, 3, 16, 16)
    assert (got / 255 - expected).abs().max() <= 1e-6


def test_images_are_decoded_in_the_order_of_the_indices(processor):
    images = pictures(5, 16, 16)
    got = decode(as_dataset(images), processor, [3, 0, 3], "here")
    rows = [torch.tensor(np.asarray(images[i])).permute(2, 0, 1) for i in (3, 0, 3)]
    assert torch.equal(got, torch.stack(rows))


def test_more_images_than_one_chunk_keep_their_order(processor):
    images = pictures(300, 16, 16)
    got = decode(as_dataset(images), processor, range(300), "here")
    expected = np.stack([np.asarray(image) for image in images]).transpose(0, 3, 1, 2)
    assert np.array_equal(got.numpy(), expected)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1"])
def test_pictures_of_any_mode_become_three_channels(mode, processor):
    images = pictures(2, 16, 16, mode)
    got = decode(as_dataset(images), processor, range(2), "here")
    expected = np.stack([np.asarray(image.convert("RGB")) for image in images])
    assert np.array_equal(got.numpy(), expected.transpose(0, 3, 1, 2))


def test_normalising_subtracts_the_mean_and_divides_by_the_deviation():
    pixels = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 3, 1, 1)
    got = normalise(pixels, (0.5, 0.1, 0.2), (0.5, 0.2, 0.4))
    assert torch.allclose(got.flatten(), torch.tensor([-1.0, 0.5, 2.0]))


def test_a_split_is_read_with_its_image_and_label(processor):
    task = toy().tasks[0]
    assert {s: len(load_split(task, s)) for s in ("train", "validation", "test")} == {
        "train": 64,
        "validation": 32,
        "test": 48,
    }


def test_an_unknown_split_names_the_known_ones():
    with pytest.raises(ValueError, match=r"no split 'dev' \(known: train, validation, test\)"):
        load_split(toy().tasks[0], "dev")


def labelled(labels, names=None):
    kind = datasets.ClassLabel(names=names) if names else datasets.Value("int64")
    return datasets.Dataset.from_dict({"label": labels}, features=datasets.Features(label=kind))


def test_labels_inside_the_class_list_pass():
    assert checked_labels(labelled([0, 2, 1]), ["a", "b", "c"], "here") == [0, 2, 1]


@pytest.mark.parametrize(("label", "classes"), [(3, "abc"), (-1, "abc"), (1, "a")])
def test_a_label_outside_the_class_list_is_refused(label, classes):
    with pytest.raises(ValueError, match=rf"^here: 1 labels lie outside .*first: {label}\)"):
        checked_labels(labelled([0, label]), list(classes), "here")


def test_every_label_outside_the_class_list_is_counted():
    with pytest.raises(ValueError, match=r"here: 3 labels lie outside its list of 2 classes"):
        checked_labels(labelled([0, 2, 5, -1]), ["a", "b"], "here")


def test_class_names_may_differ_in_case_and_punctuation():
    data = labelled([0, 1], ["sea_lake", "Annual-Crop"])
    assert checked_labels(data, ["Sea Lake", "annual crop"], "here") == [0, 1]


def test_the_data_sets_names_in_another_order_are_refused():
    data = labelled([0, 1], ["red", "green", "blue"])
    with pytest.raises(
        ValueError, match=r"another order .class 1 is 'blue', the data set says 'gr"
    ):
        checked_labels(data, ["red", "blue", "green"], "here")


@pytest.mark.parametrize("classes", [["red"], ["red", "green", "blue"]])
def test_a_class_list_of_another_length_is_refused(classes):
    with pytest.raises(ValueError, match=f"has {len(classes)} names, the data set has 2"):
        checked_labels(labelled([0, 0], ["red", "green"]), classes, "here")
