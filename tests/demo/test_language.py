"""The scenes on the model that speaks show what they claim, and the traces of them agree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from demo import language
from demo.server import serve_speaking
from demo.speaking import find_speaking_model
from demo.traces import write_traces

MODEL = find_speaking_model()
pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(600),
    pytest.mark.skipif(MODEL is None, reason="no model that speaks; `make demo` makes it"),
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    assert MODEL is not None
    with serve_speaking(MODEL) as base:
        yield base


@pytest.mark.parametrize("scene", language.SCENES, ids=lambda scene: scene.__name__)
def test_a_scene_shows_what_it_claims_and_its_trace_agrees(scene, url, tmp_path: Path) -> None:
    with httpx.Client(base_url=url, timeout=300) as http:
        played = scene(http)
    assert [claim for claim, seen in played.proofs if not seen] == []
    assert MODEL is not None
    assert [keeps for _, keeps in write_traces([played], MODEL, tmp_path)] == [True]
