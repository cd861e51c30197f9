"""What a method costs: energy counters, the stopwatch around it, and the rows made of both."""

from __future__ import annotations

import sys
import time
import types

import pytest
import torch
from harness import toy

from benchmarks import stopwatch
from benchmarks.energy import joules_meter
from benchmarks.measures import MEASURES, Trial
from benchmarks.stopwatch import Stopwatch
from merging import calibrate, merge
from merging.timing import listening, section


def zone(folder, name, energy, *, span=1000):
    """A counter as the kernel shows it, in µJ; it starts again at zero above ``span``."""
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    kind = "package-0" if name.count(":") == 1 else "core"
    (place / "name").write_text(f"{kind}\n")
    (place / "max_energy_range_uj").write_text(f"{span}\n")
    (place / "energy_uj").write_text(f"{energy}\n")
    return place


def counts(place, energy):
    (place / "energy_uj").write_text(f"{energy}\n")


# ---- processors


def test_nothing_was_used_at_the_start(tmp_path):
    zone(tmp_path, "intel-rapl:0", 500)
    assert joules_meter("cpu", tmp_path)() == 0.0


def test_the_packages_of_a_machine_are_added_up_since_the_meter_was_made(tmp_path):
    first, second = (zone(tmp_path, f"intel-rapl:{i}", 7, span=10**9) for i in (0, 1))
    joules = joules_meter("cpu", tmp_path)
    counts(first, 2_000_007)
    counts(second, 500_007)
    assert joules() == pytest.approx(2.5)


def test_parts_of_a_package_are_not_counted_again(tmp_path):
    package = zone(tmp_path, "intel-rapl:0", 0)
    part = zone(tmp_path, "intel-rapl:0:0", 0)
    joules = joules_meter("cpu", tmp_path)
    counts(package, 300)
    counts(part, 200)
    assert joules() == pytest.approx(300e-6)


def test_the_platform_that_contains_the_packages_is_not_added(tmp_path):
    package, platform = zone(tmp_path, "intel-rapl:0", 0), zone(tmp_path, "intel-rapl:1", 0)
    (platform / "name").write_text("psys\n")
    joules = joules_meter("cpu", tmp_path)
    counts(package, 100)
    counts(platform, 150)
    assert joules() == pytest.approx(1e-4)


def test_counters_of_other_kinds_are_not_read(tmp_path):
    package = zone(tmp_path, "intel-rapl:0", 0)
    (tmp_path / "intel-rapl").mkdir()  # the folder of all of them has no counter
    other = zone(tmp_path, "intel-rapl-mmio:0", 0)
    joules = joules_meter("cpu", tmp_path)
    counts(package, 300)
    counts(other, 200)
    assert joules() == pytest.approx(300e-6)


def test_a_counter_that_started_again_goes_on_from_its_range(tmp_path):
    package = zone(tmp_path, "intel-rapl:0", 900, span=1000)
    joules = joules_meter("cpu", tmp_path)
    counts(package, 99)  # 901 to 1000, then 0 to 99
    assert joules() == pytest.approx(200e-6)


def test_every_reading_is_of_all_that_was_used_so_far(tmp_path):
    package = zone(tmp_path, "intel-rapl:0", 0, span=1000)
    joules, read = joules_meter("cpu", tmp_path), []
    for energy in (600, 199, 799):  # started again once
        counts(package, energy)
        read.append(joules())
    assert read == pytest.approx([600e-6, 1200e-6, 1800e-6])
    assert joules() == read[-1]


@pytest.mark.parametrize("exists", [True, False])
def test_a_machine_without_counters_has_no_meter(exists, tmp_path):
    folder = tmp_path / "powercap"
    if exists:
        folder.mkdir()
    assert joules_meter("cpu", folder) is None


@pytest.mark.parametrize("file", ["energy_uj", "max_energy_range_uj"])
@pytest.mark.parametrize("fault", ["missing", "unreadable", "no number"])
def test_a_counter_that_cannot_be_read_is_no_meter(file, fault, tmp_path):
    zone(tmp_path, "intel-rapl:0", 5)
    path = zone(tmp_path, "intel-rapl:1", 5) / file
    path.unlink()
    if fault == "unreadable":
        path.mkdir()  # the tests may run as root, who may read any file
    if fault == "no number":
        path.write_text("unknown\n")
    assert joules_meter("cpu", tmp_path) is None


# ---- GPUs


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_gpu_without_its_package_has_no_meter_and_not_the_processors(
    device, tmp_path, monkeypatch
):
    zone(tmp_path, "intel-rapl:0", 5)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert joules_meter(device, tmp_path) is None


@pytest.mark.parametrize(("device", "used"), [("cuda", 1.5), ("cuda:0", 1.5), ("cuda:1", 3.0)])
def test_a_gpus_own_counter_is_read_in_millijoules(device, used, monkeypatch):
    counters = [100_000, 200_000]
    nvml = types.SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID={"GPU-zero": 0, "GPU-one": 1}.__getitem__,
        nvmlDeviceGetTotalEnergyConsumption=counters.__getitem__,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    names = {"cuda": "zero", "cuda:0": "zero", "cuda:1": "one"}
    monkeypatch.setattr(torch.cuda, "get_device_properties",
                        lambda name: types.SimpleNamespace(uuid=names[name]))  # fmt: skip
    joules = joules_meter(device)
    counters[:] = [101_500, 203_000]
    assert joules() == pytest.approx(used)


# ---- the stopwatch


def test_sections_of_a_method_are_listed_under_its_name_and_are_parts_of_the_whole():
    with Stopwatch("calibrate", "cpu") as watch:
        for _ in range(2):
            with section("encode"):
                time.sleep(0.02)
        with section("fit"):
            time.sleep(0.01)
        time.sleep(0.01)
    cost = watch.cost
    assert cost["calibrate_encode_seconds"] >= 0.04
    assert 0.01 <= cost["calibrate_fit_seconds"] < cost["calibrate_encode_seconds"]
    parts = cost["calibrate_encode_seconds"] + cost["calibrate_fit_seconds"]
    assert cost["calibrate_seconds"] >= parts + 0.01


def test_after_a_stopwatch_whoever_listened_before_listens_again():
    with listening() as outer:
        with Stopwatch("merge", "cpu") as watch, section("encode"):
            pass
        with section("fit"):
            pass
    assert list(outer.seconds) == ["fit"]
    assert "merge_fit_seconds" not in watch.cost


def test_of_two_stopwatches_each_has_its_own_sections():
    costs = []
    for name in ("encode", "fit"):
        with Stopwatch("merge", "cpu") as watch, section(name):
            pass
        costs.append({key for key in watch.cost if key.endswith(("encode_seconds", "fit_seconds"))})
    assert costs == [{"merge_encode_seconds"}, {"merge_fit_seconds"}]


def test_loading_is_counted_apart():
    loaded = [5.0]
    with Stopwatch("merge", "cpu", lambda: loaded[0]) as watch:
        loaded[0] += 100.0
        time.sleep(0.01)
    assert watch.cost["merge_loading_seconds"] == 100.0
    assert 0.01 <= watch.cost["merge_seconds"] + 100.0 < 50.0


def test_a_method_that_fails_still_fails_and_is_no_longer_listened_to():
    with listening() as outer:
        with pytest.raises(ZeroDivisionError), Stopwatch("merge", "cpu") as watch, section("fit"):
            _ = 1 / 0
        with section("fit"):
            pass
    assert watch.cost["merge_fit_seconds"] >= 0
    assert list(outer.seconds) == ["fit"]


@pytest.mark.parametrize("joules", [12.5, None])
def test_energy_is_a_cost_where_there_is_a_meter(joules, monkeypatch):
    meter = None if joules is None else lambda: joules
    monkeypatch.setattr(stopwatch, "joules_meter", lambda device: meter)
    with Stopwatch("merge", "cpu") as watch:
        pass
    assert watch.cost.get("merge_joules") == joules


# ---- rows


def costs_of(calibrator):
    """Cost rows of a calibrator on the toy suite, and its model."""
    pool = toy().pool(8, "train", 0)
    model = calibrate(calibrator, merge("task_arithmetic", pool), pool)
    found = MEASURES["cost"](Trial(toy(), model, "test", {"calibrate_seconds": 2.0}))
    return {metric: value for _, metric, _, value in found}


@pytest.mark.parametrize(
    ("calibrator", "each"),
    [
        ("surgery:rank=3,steps=1", 2 * 3 * 24),  # two matrices between 24 features and the rank
        ("probsurgery:hidden=5,steps=1", 2 * 5 * 24),
        ("ridge_surgery", 24 * 24 + 24),
    ],
)
def test_corrections_add_parameters_of_every_task_and_need_to_know_the_task(calibrator, each):
    cost = costs_of(calibrator)
    assert (cost["added_parameters"], cost["needs_task_id"]) == (3 * each, 1.0)


@pytest.mark.parametrize("calibrator", ["none", "featcal"])
def test_what_edits_the_shared_weights_adds_nothing_and_needs_no_task(calibrator):
    assert costs_of(calibrator) == {
        "calibrate_seconds": 2.0, "added_parameters": 0.0, "needs_task_id": 0.0
    }  # fmt: skip


@pytest.mark.parametrize("calibrator", ["featcal", "ridge_surgery", "surgery:steps=3"])
def test_a_calibrator_marks_encoding_and_fitting_apart(calibrator):
    pool = toy().pool(8, "train", 0)
    merged = merge("task_arithmetic", pool)
    with Stopwatch("calibrate", "cpu") as watch:
        calibrate(calibrator, merged, pool)
    encode, fit = (watch.cost[f"calibrate_{part}_seconds"] for part in ("encode", "fit"))
    assert encode + fit <= watch.cost["calibrate_seconds"]
    assert min(encode, fit) > 0
