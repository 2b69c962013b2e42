"""Pictures of where an output is wrong."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from pkb_gym.engine.debugging.heat_map import MAX_CELLS, cells, distances, heat_map

SVG = "{http://www.w3.org/2000/svg}"


def test_distances_are_in_root_mean_squares_of_what_is_expected():
    expected = np.array([3.0, -3.0, 3.0])
    assert distances(np.array([3.0, 0.0, 9.0]), expected).tolist() == [0.0, 1.0, 2.0]


def test_what_is_no_number_is_far_away_unless_both_are_none():
    got = np.array([np.nan, 1.0, np.nan, np.inf])
    expected = np.array([1.0, np.nan, np.nan, np.inf])
    assert distances(got, expected).tolist() == [np.inf, np.inf, 0.0, 0.0]


@pytest.mark.parametrize("dtype", [np.bool_, np.int64, np.complex64, np.float16])
def test_every_kind_of_number_has_distances(dtype: type):
    expected, got = np.array([[0, 1], [1, 0]]).astype(dtype), np.array([[1, 0], [0, 1]]).astype(dtype)
    assert (distances(got, expected) > 0).all()


@pytest.mark.parametrize("shape", [(), (1,), (100,), (300, 7), (5, 6, 200), (0, 4), (3, 0)])
def test_any_shape_fits_into_a_panel(shape: tuple[int, ...]):
    grid = cells(np.ones(shape))
    assert 1 <= grid.shape[0] <= MAX_CELLS and 1 <= grid.shape[1] <= MAX_CELLS


def test_one_wrong_element_of_many_is_seen():
    apart = np.zeros((1000, 1000))
    apart[999, 0] = 0.5
    grid = cells(apart)
    assert np.argwhere(grid).tolist() == [[MAX_CELLS - 1, 0]]


def test_a_panel_for_each_rank_with_its_wrong_cells_alone():
    apart = np.zeros((2, 2))
    apart[1, 0] = 0.5
    root = ET.fromstring(heat_map("out <of> trial 3", {0: np.zeros((2, 2)), 1: apart}))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts[:3] == ["out <of> trial 3", "rank 0: 0 of 4 elements differ", "rank 1: 1 of 4 elements differ"]
    filled = [rect for rect in root.iter(f"{SVG}rect") if rect.get("fill", "").startswith("#")]
    assert len(filled) == 1


def test_darker_is_further_and_black_is_no_number():
    apart = np.array([[1e-3, 1.0, np.inf]])
    root = ET.fromstring(heat_map("t", {0: apart}))
    pale, middle, none = (rect.get("fill") for rect in root.iter(f"{SVG}rect") if rect.get("fill", "")[0] == "#")
    assert int(pale[1:3], 16) > int(middle[1:3], 16) and none == "#000000"
