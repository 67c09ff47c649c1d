"""A schema that cannot work is an error where the class is defined."""

import pytest

from sglang_lp import LogitProcessor, Parameters


@pytest.mark.parametrize("name", ["Parameters", "Param", "params"])
def test_a_schema_of_another_name_is_refused(name):
    schema = type(name, (Parameters,), {})

    with pytest.raises(TypeError, match=f"Own.{name}: expected the name Params"):
        type("Own", (LogitProcessor,), {name: schema})
    type("Own", (LogitProcessor,), {f"_{name}": schema})
    type("Own", (LogitProcessor,), {name: schema, "Params": Parameters})


def test_a_schema_that_can_change_is_refused():
    with pytest.raises(TypeError, match=r"Own.Params: expected frozen=True"):

        class Own(LogitProcessor):
            class Params(Parameters, frozen=False):
                pass


@pytest.mark.parametrize("schema", [dict, type("Params", (), {}), {}])
def test_a_schema_that_is_none_is_refused(schema):
    with pytest.raises(TypeError, match=r"Own.Params: expected a subclass of sglang_lp.Parameters"):
        type("Own", (LogitProcessor,), {"Params": schema})
