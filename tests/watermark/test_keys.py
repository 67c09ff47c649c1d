"""Key files: permissions, contents, and that no message shows a key."""

import copy
import io
import pickle
import traceback

import msgspec
import pytest

from sglang_lp.builtins import WatermarkLogitProcessor
from sglang_lp.errors import InvalidParameter, PolicyError
from sglang_lp.served_model import ServedModel
from sglang_lp.server.gate.server import Server
from sglang_lp.trust import Policy
from sglang_lp.watermark.keys import GreenKey, TournamentKey
from sglang_lp.watermark.reading import read_key
from support.watermarks import GREEN, GREEN_SCHEME, TOURNAMENT, TOURNAMENT_SCHEME, write_key

SECRET = "15485863123"


@pytest.mark.parametrize(("scheme", "given"), [("kgw", GREEN), ("synthid", TOURNAMENT)])
def test_a_key_file_is_read(tmp_path, scheme, given):
    found = read_key(write_key(tmp_path, scheme, given))

    same = GREEN_SCHEME if scheme == "kgw" else TOURNAMENT_SCHEME
    assert (found.name, found.digest) == (scheme, same.digest)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o644, 0o666])
def test_a_file_that_others_may_read_or_write_is_refused(tmp_path, mode):
    path = write_key(tmp_path, "kgw", GREEN)
    path.chmod(mode)

    with pytest.raises(PolicyError, match=f"got permissions {mode:04o}; run chmod 600"):
        read_key(path)


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(PolicyError, match="cannot be read: No such file"):
        read_key(tmp_path / "none")
    with pytest.raises(PolicyError, match="cannot be read: Is a directory"):
        read_key(tmp_path)


MISTAKES = [
    (f'scheme = "kgw"\nhashing_key = "{SECRET}"', "Expected int, got str for hashing_key"),
    (f'scheme = "kgw"\nhashing_key = -{SECRET}', "Expected int >= 1 for hashing_key"),
    (f'scheme = "kgw"\nhashing_key = {SECRET}{SECRET}', "hashing_key"),
    (f'scheme = "kgw"\nhashing_key = {SECRET}\nkeys = [1]', "unknown field keys"),
    (f'scheme = "kgw"\nhashing_key = {SECRET}\nbias = 0', "Expected float > 0.0 for bias"),
    (f'scheme = "kgw"\nhashing_key = 1\nseeding_scheme = "{SECRET}"', "expected lefthash or"),
    (f'scheme = "{SECRET}"', "scheme: expected kgw or synthid"),
    (f"hashing_key = {SECRET}", "expected scheme, kgw or synthid, got none"),
    (f'scheme = "synthid"\nkeys = [{SECRET}, {SECRET}]', "whose layers would be equal"),
    ('scheme = "synthid"\nkeys = []', "expected at least one number"),
    (f'scheme = "synthid"\nkeys = [{SECRET}, "{SECRET}"]', "Expected int, got str for keys"),
    (f'scheme = "kgw"\nhashing_key = {SECRET}\nhashing_key = {SECRET}', "expected TOML"),
    (f"{SECRET}", "expected TOML"),
    ("\x00" + SECRET, "expected TOML"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES)
def test_a_mistake_is_named_without_a_value(tmp_path, text, message):
    path = write_key(tmp_path, "kgw", GREEN)
    path.write_text(text)

    with pytest.raises(PolicyError) as refused:
        read_key(path)

    assert message in str(refused.value)
    shown = "".join(traceback.format_exception(refused.value))
    assert SECRET not in shown


def seen(value):
    """Return how a value shows itself in messages, debuggers and printers."""
    rich = getattr(value, "__rich_repr__", tuple)
    return f"{value!r} {value} {[*rich()]}"


def test_no_object_shows_its_key():
    served = ServedModel(vocab_size=1000, watermark=GREEN_SCHEME)
    fitted = WatermarkLogitProcessor.fit_params(WatermarkLogitProcessor.Params(), served)
    key = msgspec.convert({"scheme": "synthid", **TOURNAMENT}, TournamentKey)
    for value in (served, fitted, GreenKey(**GREEN), key, GREEN_SCHEME, TOURNAMENT_SCHEME):
        assert SECRET not in seen(value)
        assert str(TOURNAMENT["keys"][3]) not in seen(value)


def test_parameters_travel_without_the_key():
    served = ServedModel(vocab_size=1000, watermark=GREEN_SCHEME)
    fitted = WatermarkLogitProcessor.fit_params(WatermarkLogitProcessor.Params(), served)

    with pytest.raises(TypeError):
        msgspec.json.encode(fitted)
    assert "scheme" not in WatermarkLogitProcessor.Params.__struct_fields__
    assert copy.copy(fitted).scheme is GREEN_SCHEME
    with pytest.raises(TypeError, match="stays in its process"):
        pickle.Pickler(io.BytesIO()).dump(GREEN_SCHEME)
    with pytest.raises(TypeError, match="stays in its process"):
        pickle.dumps(TOURNAMENT_SCHEME)


def test_a_server_without_a_key_refuses_the_processor():
    params = WatermarkLogitProcessor.parse_params({})

    with pytest.raises(InvalidParameter, match="expected a server with a watermark key"):
        WatermarkLogitProcessor.fit_params(params, ServedModel(vocab_size=1000))


def test_a_policy_names_a_file_in_its_folder(tmp_path):
    write_key(tmp_path, "kgw", GREEN)
    path = tmp_path / "policy.toml"
    path.write_text('watermark = "watermark.toml"\n')

    assert Policy.from_toml(path).read_watermark().digest == GREEN_SCHEME.digest
    path.write_text('watermark = "other.toml"\n')
    with pytest.raises(PolicyError, match=r"policy .*policy.toml: watermark .*other.toml: cannot"):
        Policy.from_toml(path).read_watermark()
    assert Policy().read_watermark() is None


def test_ranks_compare_their_keys():
    catalogues = Policy().open_catalogues()

    one, other = (Server(catalogues, one).versions for one in (GREEN_SCHEME, TOURNAMENT_SCHEME))
    assert one != other
    assert Server(catalogues).versions == {}
