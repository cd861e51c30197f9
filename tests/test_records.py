"""Rows and where they come from: written whole or not at all, read back as they were."""

from __future__ import annotations

import os
import random

import pandas as pd
import pytest
from harness import files_under, row

from benchmarks.records import (
    COLUMNS,
    Row,
    provenance,
    read_rows,
    write_json,
    write_rows,
    write_text,
)


def test_the_columns_are_the_documented_ones():
    assert COLUMNS == [
        "run", "suite", "backbone", "merger", "merger_args", "calibrator", "calibrator_args", "n",
        "split", "evaluated_on", "seed", "task", "metric", "block", "value", "source",
    ]  # fmt: skip


def test_rows_are_read_back_as_they_were_written(tmp_path):
    rows = [
        Row(**row(run="0012", merger_args="a=1,b=2", n=8, seed=3, task="dtd", value=0.1)),
        Row(**row(run="1e5", task="NA", block="0", metric="drift", value=2.5e-17)),
        Row(**row(merger='quo"ted', task="line\nbreak", value=-3.0)),
    ]
    write_rows(tmp_path / "rows.csv", rows)
    frame = read_rows(tmp_path / "rows.csv")
    assert list(frame.columns) == COLUMNS
    assert [Row(**values) for values in frame.to_dict("records")] == rows


def test_every_bit_of_a_value_survives(tmp_path):
    draw = random.Random(0)
    values = [draw.random() * 10.0 ** draw.randint(-9, 9) for _ in range(2000)]
    write_rows(tmp_path / "rows.csv", (Row(**row(value=value)) for value in values))
    assert read_rows(tmp_path / "rows.csv")["value"].tolist() == values


def test_the_file_is_plain_csv_with_the_source_last(tmp_path):
    write_rows(tmp_path / "rows.csv", [Row(**row(task="dtd", value=0.5))])
    header, line = (tmp_path / "rows.csv").read_text().splitlines()
    assert header == ",".join(COLUMNS)
    assert line == "r,toy,tiny,average,,none,,0,,test,0,dtd,accuracy,,0.5,measured"


@pytest.mark.parametrize("column", ["value", "task", "evaluated_on"])
def test_a_missing_column_is_refused_by_name(column, tmp_path):
    path = tmp_path / "rows.csv"
    pd.DataFrame([row()]).drop(columns=column).to_csv(path, index=False)
    with pytest.raises(ValueError, match=rf"rows.csv lacks the columns \['{column}'\]; it has"):
        read_rows(path)


@pytest.mark.parametrize(
    "lines", [[], [COLUMNS, ["a"] * 16, ["a"] * 17]], ids=["empty", "a field too many"]
)
def test_a_damaged_file_is_refused_by_name(lines, tmp_path):
    (tmp_path / "rows.csv").write_text("".join(",".join(line) + "\n" for line in lines))
    with pytest.raises(ValueError, match=r"rows\.csv cannot be read"):
        read_rows(tmp_path / "rows.csv")


@pytest.mark.parametrize("column", ["value", "n", "seed"])
def test_a_number_that_is_none_is_refused_with_the_file(column, tmp_path):
    pd.DataFrame([row(**{column: "many"})]).to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(ValueError, match=r"rows\.csv"):
        read_rows(tmp_path / "rows.csv")


def test_an_exception_while_writing_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "rows.csv"
    write_text(path, "old")

    def rows():
        yield Row(**row())
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        write_rows(path, rows())
    assert (files_under(tmp_path), path.read_text()) == (["rows.csv"], "old")


def test_an_interrupt_while_writing_leaves_no_file(tmp_path):
    def rows():
        yield Row(**row())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_rows(tmp_path / "new" / "rows.csv", rows())
    assert files_under(tmp_path) == ["new"]


def test_the_file_is_not_in_its_place_before_it_is_whole(tmp_path):
    path, seen = tmp_path / "rows.csv", []

    def rows():
        seen.append(path.exists())
        yield Row(**row())
        seen.append(path.exists())

    write_rows(path, rows())
    assert (seen, path.exists()) == ([False, False], True)


def test_written_files_have_the_modes_of_other_files(tmp_path):
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "a" / "text", "é\n")
    finally:
        os.umask(before)
    assert (tmp_path / "a" / "text").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "a" / "text").read_bytes() == "é\n".encode()


def test_json_is_written_with_sorted_keys(tmp_path):
    write_json(tmp_path / "x.json", {"b": 1, "a": [None, "ü"]})
    assert (tmp_path / "x.json").read_text().splitlines()[1].strip().startswith('"a"')


def test_json_that_cannot_be_written_leaves_nothing(tmp_path):
    with pytest.raises(TypeError):
        write_json(tmp_path / "x.json", {"a": object()})
    assert files_under(tmp_path) == []


def test_provenance_names_commit_packages_and_machine():
    record = provenance()
    assert {"commit", "dirty", "python", "packages", "platform", "cpu", "cores"} == set(record)
    assert record["packages"]["pandas"] == pd.__version__
    assert isinstance(record["dirty"], bool)
