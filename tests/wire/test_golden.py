"""The payload text is SGLang's, byte for byte, for every class that pickles by reference."""

import argparse
import collections
import configparser
import decimal
import io
import json
import pickle
import queue
import urllib.parse

import dill
import pytest

from sglang_lp import wire
from sglang_lp.builtins import Qwen3ThinkingBudgetLogitProcessor

CLASSES = [
    argparse.ArgumentParser,
    collections.OrderedDict,
    collections.UserDict,
    configparser.ConfigParser,
    decimal.Decimal,
    io.StringIO,
    json.JSONDecoder,
    queue.Queue,
    urllib.parse.ParseResult,
    Qwen3ThinkingBudgetLogitProcessor,
]


@pytest.mark.parametrize("protocol", wire.PROTOCOLS)
@pytest.mark.parametrize("cls", CLASSES)
def test_a_reference_is_what_dill_and_pickle_write(cls, protocol):
    written = wire.reference_pickle(cls.__module__, cls.__qualname__, protocol)

    assert written == dill.dumps(cls, protocol=protocol)
    assert written == pickle.dumps(cls, protocol)


@pytest.mark.parametrize("cls", CLASSES)
def test_every_reference_means_that_class_to_every_unpickler(cls):
    pickles = list(wire.references(cls.__module__, cls.__qualname__))
    assert len(pickles) == len(wire.PROTOCOLS)
    for pickled in pickles:
        assert pickle.loads(pickled) is cls
        assert pickle._loads(pickled) is cls
        assert dill.loads(pickled) is cls


def test_the_payload_of_a_builtin_is_pinned():
    expected = (
        '{"callable": "80049541000000000000008c1273676c616e675f6c702e6275696c74696e73948c26'
        "446565705365656b52315468696e6b696e674275646765744c6f67697450726f636573736f72"
        '9493942e"}'
    )
    name = "DeepSeekR1ThinkingBudgetLogitProcessor"

    assert wire.payload_for("sglang_lp.builtins", name) == expected
    assert expected == json.dumps(
        {"callable": wire.reference_pickle("sglang_lp.builtins", name).hex()}
    )
