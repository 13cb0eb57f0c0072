from __future__ import annotations

import pytest

from unmask.experiments.store import Store

RECORDS = {("model", "task", name): {"name": name, "numbers": [1, 2.5, None]} for name in "abc"}


@pytest.fixture
def store(tmp_path):
    """A store with three records, none of them packed."""
    store = Store(tmp_path / "records")
    for key, content in RECORDS.items():
        store.keep(content, *key)
    return store


def contents(store):
    return {key: store.read(*key) for key in RECORDS}


def test_packed_records_are_read_like_loose_ones(store):
    assert store.pack() == 3
    assert contents(store) == contents(Store(store.path)) == RECORDS
    assert store.read("model", "task", "d") is None


def test_packing_leaves_one_file(store, tmp_path):
    store.pack()
    assert [file.name for file in tmp_path.iterdir()] == ["records.tar.xz"]


def test_packing_again_adds_the_new_records(store):
    store.pack()
    store.keep({"name": "d"}, "other", "task", "d")
    assert store.pack() == 1
    assert contents(store) == RECORDS
    assert store.read("other", "task", "d") == {"name": "d"}
    assert store.pack() == 0


def test_equal_records_give_the_same_archive_in_whatever_order_they_came(store, tmp_path):
    store.pack()
    other = Store(tmp_path / "other")
    for key in reversed(RECORDS):
        other.keep(RECORDS[key], *key)
        other.pack()
    assert other.archive.read_bytes() == store.archive.read_bytes()


def test_a_record_kept_again_replaces_the_packed_one(store):
    store.pack()
    store.keep({"name": "new"}, "model", "task", "a")
    assert store.read("model", "task", "a") == {"name": "new"}
    store.pack()
    assert store.read("model", "task", "a") == {"name": "new"}


def test_packing_leaves_a_run_under_way_alone(store):
    folder = store.folder("model", "task", "running")
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    store.pack()
    assert [file.name for file in store.path.rglob("*") if file.is_file()] == ["run.json"]


def test_a_hub_id_is_one_name(tmp_path):
    store = Store(tmp_path / "records")
    store.keep({"a": 1}, "org/model@main", "task", "run")
    store.pack()
    assert store.read("org/model@main", "task", "run") == {"a": 1}


def test_a_damaged_record_is_named(store):
    file = store.path / "model" / "task" / "a.json.xz"
    file.write_bytes(b"nothing")
    for use in (lambda: store.read("model", "task", "a"), store.pack):
        with pytest.raises(ValueError, match=r"a\.json\.xz is damaged"):
            use()


def test_a_damaged_archive_is_named_and_never_overwritten(store):
    store.pack()
    whole = store.archive.read_bytes()
    store.archive.write_bytes(whole[:-20])
    again = Store(store.path)
    again.keep({}, "model", "task", "d")
    for use in (lambda: again.read("model", "task", "a"), again.pack):
        with pytest.raises(ValueError, match=r"records\.tar\.xz is damaged"):
            use()
    assert store.archive.read_bytes() == whole[:-20]
