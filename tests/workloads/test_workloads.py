"""Workloads: the same rows however they are cut, the distributions of the papers, closed forms of the selectivity."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from hitbox import workloads
from hitbox.encoding.arrays import HIGHEST, LOWEST, MISSING, Boxes, Points
from hitbox.errors import HitboxError
from hitbox.index.index import Index
from hitbox.matchers import make
from hitbox.workloads.base import CHUNK
from hitbox.workloads.classbench import read
from hitbox.workloads.draws import choose, shaped, words, zipf_ranks
from support.tiers import only

VARIANTS = [
    ("w1", {}),
    ("w1", {"intervals": 0.1}),
    ("w1", {"selectivity": 0.01, "distribution": "normal", "event_distribution": "pareto"}),
    ("w2", {}),
    ("w2", {"distribution": "zipf", "event_distribution": "zipf"}),
    ("w2", {"distribution": "mixed"}),
    ("w2", {"match_rate": 0.01}),
    ("w3", {}),
    ("w4", {}),
    ("w4", {"intervals": 0.1}),
    ("pri-rein-s", {}),
    ("index-count", {}),
    ("symmetric", {"used": 0.5}),
    ("symmetric", {"swapped": True, "information": 3}),
]
RULES = """@10.0.0.0/8\t0.0.0.0/0\t0 : 65535\t80 : 80\t0x06/0xFF\t0x0000/0x0000
@1.2.3.4/32\t192.168.1.77/24\t1024 : 65535\t0 : 1023\t0x00/0x00\t0x0000/0x0000
"""


def same_boxes(one: Boxes, two: Boxes) -> None:
    for name in ("offsets", "attribute", "low", "high", "priority"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


def hits(workload: workloads.Workload, points: int) -> np.ndarray:
    matcher = make("brute", workload.space)
    matcher.insert(np.arange(workload.n), workload.boxes(0, workload.n))
    return np.diff(matcher.match(workload.points(0, points)).offsets)


@pytest.mark.parametrize(("name", "parameters"), VARIANTS)
def test_rows_do_not_depend_on_the_partitioning(name, parameters):
    workload = workloads.get(name, **parameters)
    start, total = 123, CHUNK + 500
    cuts = [0, 1, 7, 300, CHUNK - 1, total]
    parts = [(start + a, b - a) for a, b in pairwise(cuts)]
    same_boxes(workload.boxes(start, total), Boxes.concat([workload.boxes(*part) for part in parts]))
    whole = workload.points(start, total)
    pieces = [workload.points(*part) for part in parts]
    np.testing.assert_array_equal(whole.low, np.concatenate([piece.low for piece in pieces]))
    np.testing.assert_array_equal(whole.high, np.concatenate([piece.high for piece in pieces]))
    assert whole.intervals == pieces[0].intervals == workload.points(0, 0).intervals


@pytest.mark.parametrize(("name", "parameters"), VARIANTS)
def test_rows_are_well_formed(name, parameters):
    workload = workloads.get(name, **parameters)
    boxes, points, space = workload.boxes(0, 2000), workload.points(0, 200), workload.space
    assert len(boxes) == 2000
    assert points.low.shape == points.high.shape == (200, space.attributes)
    assert (boxes.low <= boxes.high).all()
    assert (points.low <= points.high).all()
    assert boxes.attribute.max() < space.attributes
    inner = np.diff(boxes.attribute)[np.setdiff1d(np.arange(len(boxes.attribute) - 1), boxes.offsets[1:-1] - 1)]
    assert (inner > 0).all()
    bounded = (boxes.low != LOWEST) & (boxes.high != HIGHEST)
    assert (boxes.low >= space.low[boxes.attribute])[bounded].all()
    assert (boxes.high <= space.high[boxes.attribute])[bounded].all()
    present = points.low != MISSING
    assert (points.low >= space.low)[present].all()
    assert (points.high <= space.high)[present].all()


def test_seeds_and_streams_differ():
    one, two = workloads.get("w1", seed=1), workloads.get("w1", seed=2)
    assert (one.boxes(0, 100).low != two.boxes(0, 100).low).mean() > 0.99
    assert (one.points(0, 100).low != one.points(100, 100).low).mean() > 0.99
    assert len(np.unique(words(3, 0, np.arange(1000), 50))) == 50_000


def test_words_stay_what_they_are():
    """Published results name a seed: the generator may not drift."""
    np.testing.assert_array_equal(
        words(1, 0, np.array([0, 5]), 2) >> np.uint64(40), [[6130293, 14822802], [7730125, 5497506]]
    )


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("w1", {"m": 10, "k": 3}),
        ("w1", {"k": 2, "selectivity": 0.05}),
        ("w2", {"m": 3}),
        ("w3", {}),
        ("w1", {"k": 2, "distribution": "pareto"}),
        ("pri-rein-s", {"k": 2}),
        ("index-count", {"k": 2}),
        ("w2", {"m": 2, "cardinality": 100, "equalities": 0.5}),
    ],
)
def test_closed_form_of_the_selectivity(name, parameters):
    workload = workloads.get(name, n=20_000, **parameters)
    counts = hits(workload, 500)
    error = counts.std() / np.sqrt(len(counts))
    assert abs(counts.mean() - workload.share * workload.n) < 5 * error + 0.03 * counts.mean()


@pytest.mark.parametrize(
    ("parameters", "matched"),
    [
        ({"m": 10, "k": 5}, 11_745_128),
        ({"m": 18, "k": 9}, 752_285),
        ({"m": 30, "k": 15}, 10_727),
        ({"width": 0.3}, 2_369),
        ({"width": 0.5}, 378_886),
        ({"width": 0.8}, 42_023_835),
    ],
)
def test_rein_matches_what_the_paper_counted(parameters, matched):
    """REIN's tables IV and VI: matches of 400 events among a million subscriptions."""
    assert workloads.get("rein", n=1_000_000, **parameters).share * 4e8 == pytest.approx(matched, rel=0.15)


@pytest.mark.parametrize("rate", [0.002, 0.05, 0.2])
def test_match_rate_is_exact(rate):
    workload = workloads.get("dexin", n=10_000, match_rate=rate)
    assert set(hits(workload, workload.seeds)) == {round(10_000 * rate)}


def test_events_of_a_match_rate_are_uniform_and_differ_on_every_attribute():
    found = [workloads.get("dexin", n=100, seed=seed, match_rate=0.2).points(0, 5).low for seed in range(200)]
    for values in found:
        assert all(len(set(column)) == 5 for column in values.T.tolist())
    share = np.abs(np.array(found)[:, :4] - np.array(found)[:, 1:]).mean() / 1_000_000
    assert share == pytest.approx(1 / 3, rel=0.03)  # the mean distance of two uniform values, not of two strips


def test_attributes_are_chosen_uniformly():
    for sizes in (3, np.resize([1, 4, 2], 30_000)):
        picked = choose(1, 0, np.arange(30_000), 8, sizes)
        counts = np.bincount(picked.ravel(), minlength=9)
        expected = 30_000 * (3 if isinstance(sizes, int) else 7 / 3) / 8
        assert np.abs(counts[:8] - expected).max() < 6 * np.sqrt(expected)
        inside = (picked[:, 1:] < 8).nonzero()
        assert (np.diff(picked, axis=1)[inside] > 0).all()
    assert (choose(1, 0, np.arange(5), 4, 4) == np.arange(4)).all()


def test_distributions():
    rows = np.arange(50_000)
    normal = shaped("normal", 1, 0, rows, 2, 100, 1.0)
    assert abs(normal.mean() - 0.5) < 0.005
    assert abs(normal.var() - 0.02) < 0.001
    pareto = shaped("pareto", 1, 0, rows, 2, 100, 1.0)
    assert pareto.min() >= 0.25
    assert pareto.max() < 1
    assert abs(np.median(pareto) - 0.25 / np.sqrt(1 - 0.5 * 15 / 16)) < 0.005
    ranks = zipf_ranks(shaped("uniform", 1, 0, rows, 2, 100, 1.0).ravel(), 100, 1.0)
    weight = 1 / np.arange(1, 101)
    np.testing.assert_allclose(np.bincount(ranks, minlength=100)[:10] / 1e5, (weight / weight.sum())[:10], rtol=0.1)


def test_mixed_attributes_are_uniform_or_zipf():
    low, _ = workloads.get("w2", distribution="mixed").boxes(0, 4_000).dense(10)
    middle = np.median(low, axis=0) / workloads.PRECISION
    assert {bool(m < 0.02) for m in middle} == {True, False}
    assert all(m < 0.02 or 0.2 < m < 0.35 for m in middle)


def test_priorities():
    priority = workloads.get("w3").boxes(0, 20_000).priority
    assert np.abs(np.bincount(priority, minlength=10) - 2000).max() < 300
    assert set(workloads.get("w1").boxes(0, 100).priority) == {4}


def test_advertising_shape():
    workload = workloads.get("w4")
    boxes, points = workload.boxes(0, 20_000), workload.points(0, 100)
    assert set(np.diff(boxes.offsets)) == set(range(3, 9))
    assert abs((boxes.low == boxes.high).mean() - 0.7) < 0.01
    assert ((points.low != MISSING).sum(axis=1) == 60).all()
    assert workload.space.high.min() == 9


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("information", only([0, 8], [0, 5, 8, 16]))
def test_symmetric_selectivity(swapped, information):
    workload = workloads.get("symmetric", n=20_000, selectivity=0.001, information=information, swapped=swapped)
    counts = hits(workload, 200)
    assert counts.min() >= 20
    assert counts.mean() < 21


def test_symmetric_roles():
    plain = workloads.get("symmetric", information=5, used=0.5, equalities=1.0, points_share=0.0)
    turned = workloads.get("symmetric", information=5, used=0.5, equalities=1.0, points_share=0.0, swapped=True)
    assert plain.space.information == tuple(range(11, 16))
    assert turned.space.information == tuple(range(11))
    boxes, points = plain.boxes(0, 4000), plain.points(0, 4000)
    low, high = boxes.dense(16)
    assert abs((low[:, :11] == MISSING).mean() - 0.5) < 0.02
    assert (low[:, 11:] != MISSING).all()
    careless = (points.low == MISSING) & (points.high == HIGHEST)
    assert not careless[:, :11].any()
    assert abs(careless[:, 11:].mean() - 0.5) < 0.02
    np.testing.assert_array_equal(turned.points(0, 4000).low, low)
    np.testing.assert_array_equal(turned.boxes(0, 4000).dense(16)[1], points.high)
    assert (high >= low).all()


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("w11", {}, "did you mean 'w1'"),
        ("w1", {"widht": 0.1}, "did you mean 'width'"),
        ("w1", {"width": 1.5}, "width=1.5 must be between 0 and 1"),
        ("w1", {"width": "wide"}, "is not of type float"),
        ("w1", {"n": 2.5}, "is not of type int"),
        ("w1", {"k": 30}, "between 0 and m=20"),
        ("w1", {"distribution": "gauss"}, "is unknown"),
        ("w1", {"distribution": "mixed"}, "needs a constraint on every attribute"),
        ("w2", {"match_rate": 1e-5}, "raise cardinality"),
        ("symmetric", {"selectivity": 0}, "above 0"),
        ("classbench", {"path": "nowhere"}, "HITBOX_DATA"),
    ],
)
def test_bad_parameters(name, parameters, message):
    with pytest.raises(HitboxError, match=message):
        workloads.get(name, **parameters)


def test_text_parameters_and_record():
    workload = workloads.get("w1", n="200k", width="0.25", free_ends="false")
    assert workload == workloads.get("w1", n=200_000, width=0.25)
    assert workload.parameters["n"] == 200_000
    assert workloads.get("w1", **workload.parameters) == workload
    assert [name for name in workloads.names() if not workloads.PRESETS[name].about] == []
    with pytest.raises(HitboxError, match="negative"):
        workload.boxes(-1, 5)


def test_classbench(tmp_path: Path):
    path = tmp_path / "rules"
    path.write_text(RULES)
    workload = workloads.get("classbench", path=str(path))
    boxes = workload.boxes(0, 2)
    assert boxes[0] == {0: (10 << 24, (11 << 24) - 1), 3: (80, 80), 4: (6, 6)}
    net = 192 << 24 | 168 << 16 | 1 << 8
    assert boxes[1] == {
        0: (0x01020304, 0x01020304),
        1: (net, net + 255),
        2: (1024, 65535),
        3: (0, 1023),
    }
    assert boxes.priority.tolist() == [9, 4]
    assert isinstance(workload.points(0, 10), Points)
    assert (hits(workload, 50) >= 1).all()
    path.write_text(RULES + "nonsense\n")
    with pytest.raises(HitboxError, match="line 3"):
        read(path)
    path.write_text(RULES.replace("10.0.0.0/8", "10.0.0.300/8"))
    with pytest.raises(HitboxError, match="line 1: a field is out of range"):
        read(path)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("w1", {"width": 0.8}),
        ("w1", {"width": 0.8, "intervals": 0.2}),
        ("w3", {}),
        ("w4", {"m": 20, "carried": 10}),
        ("index-count", {}),
        ("symmetric", {"information": 0, "selectivity": 0.01}),
    ],
)
def test_tables_mean_the_same_as_boxes_and_points(name, parameters):
    workload = workloads.get(name, n=400, **parameters)
    index = Index(workloads.tables.schema(workload), matcher="brute")
    index.load(workloads.tables.subscriptions(workload, 0, 150))
    index.load(workloads.tables.subscriptions(workload, 150, 250))
    matches = index.match_batch(workloads.tables.events(workload, 0, 40))
    brute = make("brute", workload.space)
    brute.insert(np.arange(400), workload.boxes(0, 400))
    hits = brute.match(workload.points(0, 40))
    assert hits.offsets[-1] > 0
    np.testing.assert_array_equal(matches.offsets, hits.offsets)
    for i in range(40):
        got = matches.ids.slice(int(matches.offsets[i]), int(matches.offsets[i + 1] - matches.offsets[i]))
        assert set(got.to_pylist()) == set(hits[i].tolist())
    assert index.priority(7) == workload.boxes(7, 1).priority[0]


def test_symmetric_has_no_wide_table():
    with pytest.raises(HitboxError, match="both sides"):
        workloads.tables.events(workloads.get("symmetric"), 0, 3)


@pytest.mark.skipif("HITBOX_DATA" not in os.environ, reason="HITBOX_DATA names no directory of rule files")
def test_classbench_files():
    files = sorted(Path(os.environ["HITBOX_DATA"]).glob("*_10k.gz"))
    assert files
    for file in files:
        workload = workloads.get("classbench", path=file.name)
        assert workload.n > 9000
        assert (hits(workload, 100) >= 1).all()
