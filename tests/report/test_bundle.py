"""What a page holds of attempts, and what it leaves out to stay small."""

from __future__ import annotations

import base64
import doctest
import gzip
import json
import random

from pkb_gym.report import embedding, markdown
from pkb_gym.report.bundle import PER_CHUNK, bundle_of
from pkb_gym.report.embedding import json_for_script
from tests.metrics.attempts import attempt


def unpack(chunk):
    return json.loads(gzip.decompress(base64.b64decode(chunk)))


def rows(bundle):
    return [dict(zip(bundle.index["columns"], row, strict=True)) for row in bundle.index["attempts"]]


def test_every_attempt_is_listed_with_its_details():
    attempts = [attempt(problem, sample=i, speedup=1.0 + i) for problem in ("HyenaCP", "Gather") for i in range(20)]
    bundle = bundle_of(attempts, 10**7)
    chunks = [unpack(chunk) for chunk in bundle.chunks]
    assert len(bundle.index["attempts"]) == 40 and bundle.left_out == ""
    assert [len(chunk) for chunk in chunks] == [PER_CHUNK, 40 - PER_CHUNK]
    for row in rows(bundle):
        problem = bundle.index["problems"][row["problem"]]
        source = chunks[row["chunk"]][row["place"]]["source"]
        assert source.startswith(f"// {problem} of a, sample {row['sample']}, turn 0\n") and row["right"] == 1
    assert bundle_of(attempts, 10**7) == bundle, "the same bytes each time"


def test_turns_of_a_sample_share_an_episode():
    bundle = bundle_of([attempt(turn=0), attempt(turn=1), attempt(sample=1)], 10**6)
    assert [row["episode"] for row in rows(bundle)] == [0, 0, 1]


def test_attempts_that_do_not_fit_are_left_out_and_counted():
    noise = random.Random(0)

    def text(chars):
        return "".join(noise.choices("abcdefghijklmnopqrstuvwxyz", k=chars))

    attempts = [
        attempt(problem, sample=i, speedup=1.0 + i, source=text(2000), reply=text(8000))
        for problem in ("AllReduce", "Gather")
        for i in range(4)
    ]
    everything = bundle_of(attempts, 10**7)
    fewer = bundle_of(attempts, everything.nbytes - 1)
    assert "Replies" in fewer.left_out and fewer.nbytes < everything.nbytes and len(rows(fewer)) == 8
    assert all("reply" not in details for chunk in fewer.chunks for details in unpack(chunk))
    best = bundle_of(attempts, fewer.nbytes - 1)
    assert best.left_out.startswith("2 of 8 attempts are shown") and [row["sample"] for row in rows(best)] == [3, 3]
    one = bundle_of(attempts, best.nbytes - 1)
    assert len(rows(one)) == 1 and one.nbytes < best.nbytes
    assert rows(bundle_of(attempts, 0)) == []


def test_json_cannot_end_its_element():
    hostile = {"a": "</script><script>alert(1)</script><!-- \u2028 & \ud800"}
    text = json_for_script(hostile)
    assert not set("<>&") & set(text) and text.isascii() and json.loads(text) == hostile


def test_examples():
    assert doctest.testmod(embedding).failed == 0 and doctest.testmod(markdown).failed == 0
