# ruff: noqa: D103, S102 - a group's name and the source above it describe it
"""Hostile payloads, assembled opcode by opcode, grouped by the way in which they attack.

One function for each group of constructions, named by its number; the advisory or source stands
above it. None of them is ever unpickled here. What they would do, were they unpickled, was tried
on CPython 3.8 to 3.13 with dill 0.3.8 to 0.4.1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import orjson

from sglang_lp import wire

Pickles = Iterator[tuple[str, bytes]]
Texts = Iterator[tuple[str, object]]

#: A class that the default policy allows.
MODULE, NAME = "sglang_lp.builtins", "DisallowedTokensLogitsProcessor"
STOCK = "sglang.srt.sampling.custom_logit_processor"
#: SGLang's own processors, but for the one that is a base without token ids.
STOCK_NAMES = (
    "DeepSeekR1ThinkingBudgetLogitProcessor",
    "DeepseekOCRNoRepeatNGramLogitProcessor",
    "DisallowedTokensLogitsProcessor",
    "Glm4MoeThinkingBudgetLogitProcessor",
    "InklingThinkingBudgetLogitProcessor",
    "Qwen3ThinkingBudgetLogitProcessor",
)
OK = (MODULE, NAME)
SYSTEM = ("os", "system")
GOOD = wire.reference_pickle(*OK)

STOP, MARK, POP, POP_MARK, DUP = b".", b"(", b"0", b"1", b"2"
REDUCE, BUILD, NEWOBJ, NEWOBJ_EX, OBJ = b"R", b"b", b"\x81", b"\x92", b"o"
NONE, EMPTY_TUPLE, EMPTY_DICT, EMPTY_LIST = b"N", b")", b"}", b"]"
TUPLE1, TUPLE2, MEMOIZE, STACK_GLOBAL = b"\x85", b"\x86", b"\x94", b"\x93"


def text(value: str) -> bytes:
    """SHORT_BINUNICODE."""
    raw = value.encode("utf-8", "surrogatepass")
    return b"\x8c" + bytes([len(raw)]) + raw


def blob(value: bytes) -> bytes:
    """BINBYTES."""
    return b"B" + struct.pack("<I", len(value)) + value


def named(module: str, name: str) -> bytes:
    """STACK_GLOBAL."""
    return text(module) + text(name) + STACK_GLOBAL


def old_named(module: str, name: str) -> bytes:
    """GLOBAL."""
    return f"c{module}\n{name}\n".encode()


def proto(version: int, body: bytes) -> bytes:
    return bytes([0x80, version]) + body + STOP


def framed(body: bytes, version: int = 4) -> bytes:
    body += STOP
    return bytes([0x80, version, 0x95]) + struct.pack("<Q", len(body)) + body


# Pickle documentation, "Restricting Globals"; CVE-2026-7304 (SGLang, from_str).
def n01_reduce() -> Pickles:
    for target in (SYSTEM, OK, (STOCK, NAME), ("posix", "system"), ("builtins", "eval")):
        for argument in (text("id"), NONE):
            label = f"{target[0]}.{target[1]}-{argument[:1].hex()}"
            yield f"p0-{label}", old_named(*target) + b"(S'id'\ntR."
            yield f"p2-{label}", proto(2, old_named(*target) + argument + TUPLE1 + REDUCE)
            yield f"p4-{label}", framed(named(*target) + argument + TUPLE1 + REDUCE)
            yield f"p5-{label}", framed(named(*target) + argument + TUPLE1 + REDUCE, 5)
            yield f"no-arguments-{label}", framed(named(*target) + EMPTY_TUPLE + REDUCE)


# picklescan issue #21 (INST not handled); PickleBall, arXiv 2508.15987, refuses INST and OBJ.
def n02_inst_and_obj() -> Pickles:
    for module, name in (SYSTEM, OK):
        inst = f"i{module}\n{name}\n".encode()
        yield f"inst-{name}", MARK + b"S'id'\n" + inst + STOP
        yield f"inst-no-arguments-{name}", MARK + inst + STOP
        yield f"obj-{name}", MARK + old_named(module, name) + b"S'id'\n" + OBJ + STOP
        yield f"obj-no-arguments-{name}", MARK + old_named(module, name) + OBJ + STOP


# The January 2025 to_str() sent instances: github.com/sgl-project/sglang, PR #2396.
def n03_instances() -> Pickles:
    yield "newobj", framed(named(*OK) + EMPTY_TUPLE + NEWOBJ)
    yield "newobj-memoized", GOOD[:-1] + EMPTY_TUPLE + NEWOBJ + MEMOIZE + STOP
    yield "newobj-ex", framed(named(*OK) + EMPTY_TUPLE + EMPTY_DICT + NEWOBJ_EX)
    yield "newobj-p2", proto(2, old_named(*OK) + b"q\x00" + EMPTY_TUPLE + NEWOBJ + b"q\x01")
    yield "newobj-system", framed(named("subprocess", "Popen") + text("id") + TUPLE1 + NEWOBJ)


# BUILD on an allowlisted class rewrites the server's class: fickling GHSA-mhc9-48gj-9gp3.
def n04_build() -> Pickles:
    state = EMPTY_DICT + text("END") + b"K\x63" + b"s"
    yield "dict-on-instance", framed(named(*OK) + EMPTY_TUPLE + NEWOBJ + state + BUILD)
    attributes = "END __call__ __new__ __init__ __abstractmethods__ __module__ __qualname__ edit"
    for attribute in [*attributes.split(), "Params", "needs"]:
        slots = NONE + EMPTY_DICT + text(attribute) + text("x") + b"s" + TUPLE2
        yield f"slot-state-{attribute}", framed(named(*OK) + slots + BUILD)
        yield f"slot-state-then-broken-{attribute}", framed(named(*OK) + slots + BUILD + b"\xff")
        yield f"slot-state-p2-{attribute}", proto(2, old_named(*OK) + slots + BUILD)
    yield "module-globals", framed(named("sglang_lp", "builtins") + state + BUILD)
    yield "setstate", framed(named("collections", "deque") + EMPTY_TUPLE + NEWOBJ + state + BUILD)


# PyTorch CVE-2026-24747: SETITEM on an object that is no dict.
def n05_set_and_append() -> Pickles:
    instance = named(*OK) + EMPTY_TUPLE + NEWOBJ
    environment = named("os", "environ")
    for label, target in (("instance", instance), ("environ", environment), ("class", named(*OK))):
        yield f"setitem-{label}", framed(target + text("a") + text("b") + b"s")
        yield f"setitems-{label}", framed(target + MARK + text("a") + text("b") + b"u")
        yield f"append-{label}", framed(target + text("a") + b"a")
        yield f"appends-{label}", framed(target + MARK + text("a") + b"e")
        yield f"additems-{label}", framed(target + MARK + text("a") + b"\x90")


# fickling GHSA-mxhj-88fx-4pcv: OBJ + POP made a call vanish from the analysis.
def n06_hidden_calls() -> Pickles:
    call = named(*SYSTEM) + text("id") + TUPLE1 + REDUCE
    good = text(MODULE) + MEMOIZE + text(NAME) + MEMOIZE + STACK_GLOBAL + MEMOIZE
    yield "reduce-pop", framed(call + POP + good)
    yield "reduce-pop-mark", framed(MARK + call + POP_MARK + good)
    yield "obj-pop", MARK + old_named(*SYSTEM) + b"S'id'\n" + OBJ + POP + old_named(*OK) + b"p0\n."
    yield "inst-pop", MARK + b"S'id'\nios\nsystem\n" + POP + old_named(*OK) + b"p0\n."
    yield "below-the-top", framed(call + good)
    yield "before-a-whole-pickle", call + GOOD


# sglang PR #34370: io_struct._maybe_unwrap_pickle; picklescan GHSA list of nested loaders.
def n07_nested_pickles() -> Pickles:
    inner = old_named(*SYSTEM) + b"(S'id'\ntR."
    for module, name in (
        ("pickle", "loads"),
        ("_pickle", "loads"),
        ("pickle", "_loads"),
        ("dill", "loads"),
        ("dill._dill", "loads"),
        ("dill._dill", "_load_type"),
        ("torch", "load"),
        ("joblib", "load"),
        ("marshal", "loads"),
        ("sglang.srt.managers.io_struct", "_maybe_unwrap_pickle"),
        ("sglang.srt.utils.common", "dynamic_import"),
    ):
        yield f"{module}.{name}", framed(named(module, name) + blob(inner) + TUPLE1 + REDUCE)


# dill issues #397, #402, #579, #746: eval sinks.
def n08_dill_helpers() -> Pickles:
    names = "_eval_repr _getattr _import_module _create_type _create_function _create_code"
    others = "_create_filehandle _get_attr _create_capsule _load_type _create_array _create_cell"
    for name in names.split(" ") + others.split(" "):
        for module in ("dill._dill", "dill.dill"):
            body = named(module, name)
            yield f"{module}.{name}", framed(body)
            yield f"{module}.{name}-called", framed(body + text("id") + TUPLE1 + REDUCE)


# modelaudit posix_alias_attack.pkl: no call opcode; SGLang itself calls what was loaded.
def n09_a_name_alone() -> Pickles:
    for module, name in (
        ("os", "abort"),
        ("os", "getpid"),
        ("sys", "exit"),
        ("builtins", "breakpoint"),
        ("builtins", "exit"),
        ("antigravity", "fly"),
        ("code", "interact"),
        ("pdb", "set_trace"),
    ):
        for protocol in wire.PROTOCOLS:
            yield f"{module}.{name}-p{protocol}", wire.reference_pickle(module, name, protocol)


_HOOKED = {
    "init_subclass": "class Base:\n def __init_subclass__(cls): fire()\nclass Evil(Base): pass",
    "metaclass": "class Meta(type):\n def __new__(*a): fire(); return type.__new__(*a)\n"
    "class Evil(metaclass=Meta): pass",
    "instancecheck": "class Meta(type):\n def __instancecheck__(*a): fire()\n"
    " def __subclasscheck__(*a): fire()\nclass Evil(metaclass=Meta): pass",
    "set_name": "class Field:\n def __set_name__(*a): fire()\nclass Evil:\n x = Field()",
    "del": "class Evil:\n def __del__(self): fire()",
    "call": "class Evil:\n def __call__(self, logits, params=None): fire()",
    "new": "class Evil:\n def __new__(cls): fire()",
    "spoof": f"class Evil:\n def __call__(self, logits, params=None): fire()\n"
    f"Evil.__module__ = {MODULE!r}\nEvil.__qualname__ = Evil.__name__ = {NAME!r}",
}


# sglang PR #27315: an allow list that checks the name of the object after unpickling it.
def n10_classes_by_value() -> Pickles:
    import dill

    for label, source in _HOOKED.items():
        space = {"__name__": "__main__", "fire": lambda: None}
        exec(source, space)
        yield label, dill.dumps(space["Evil"], byref=False, recurse=True)


# splitline's pickle series; picklescan malicious23: STRING as an operand of STACK_GLOBAL.
def n11_operands() -> Pickles:
    def spell(kind: str, value: str) -> bytes:
        raw = value.encode()
        return {
            "short": text(value),
            "binunicode": b"X" + struct.pack("<I", len(raw)) + raw,
            "binunicode8": b"\x8d" + struct.pack("<Q", len(raw)) + raw,
            "unicode": b"V" + raw + b"\n",
            "escaped": b"V" + b"".join(b"\\u%04x" % char for char in raw) + b"\n",
            "string": b"S'" + raw + b"'\n",
            "string-double": b'S"' + raw + b'"\n',
            "short-binstring": b"U" + bytes([len(raw)]) + raw,
            "binstring": b"T" + struct.pack("<i", len(raw)) + raw,
            "binbytes": blob(raw),
        }[kind]

    kinds = "short binunicode binunicode8 unicode escaped string string-double short-binstring"
    for target in (OK, SYSTEM):
        for kind in [*kinds.split(), "binstring", "binbytes"]:
            body = spell(kind, target[0]) + spell(kind, target[1]) + STACK_GLOBAL
            yield f"{kind}-{target[1]}", framed(body)
            body = (
                spell(kind, target[0]) + MEMOIZE + spell(kind, target[1]) + MEMOIZE + STACK_GLOBAL
            )
            if kind != "short" or target != OK:
                yield f"{kind}-memoized-{target[1]}", framed(body + MEMOIZE)
        yield f"global-in-p4-{target[1]}", framed(old_named(*target))
        yield f"global-in-p4-memoized-{target[1]}", framed(old_named(*target) + MEMOIZE)


# picklescan issue #22 / PR #23 (memo out of order); CPython gh-123309 (memo redefinition).
def n12_memo() -> Pickles:
    strings = text(NAME) + b"q\x00" + POP + text(MODULE) + b"q\x01" + POP
    yield "swapped", framed(strings + b"h\x01" + b"h\x00" + STACK_GLOBAL)
    yield "decoys", framed(text("a") + b"q\x05" + POP + strings + b"h\x01h\x00" + STACK_GLOBAL)
    yield "long", framed(strings + b"j\x01\0\0\0" + b"j\x00\0\0\0" + STACK_GLOBAL)
    yield "dup", framed(text("abc") + DUP + STACK_GLOBAL)
    for key in (b"0", b"00", b" 0", b"+0", b"0_0", b"1_0", b"-1", b"0x0"):
        label = key.decode().replace(" ", "space")
        yield f"text-key-{label}", old_named(*OK) + b"p" + key + b"\ng" + key + b"\n."
        yield f"put-only-{label}", old_named(*OK) + b"p" + key + b"\n." if key != b"0" else b"."
    yield "redefined", framed(text("os") + b"q\x00" + POP + text(MODULE) + b"q\x00" + text(NAME))
    yield "memoize-after-put", framed(text("os") + b"q\x01" + text(MODULE) + MEMOIZE + text(NAME))


# fickling GHSA-5j3x-jp52-966f (dotted STACK_GLOBAL); modelscan malicious13.
def n13_dotted_names() -> Pickles:
    for module, name in (
        (MODULE, "os.system"),
        (MODULE, f"{NAME}.__init__.__globals__"),
        (MODULE, f"{NAME}.__call__.__func__"),
        (MODULE, f"{NAME}.mro"),
        (MODULE, f"{NAME}.__subclasses__"),
        (MODULE, f"{NAME}.Params"),
        (STOCK, "dill.loads"),
        (STOCK, "torch.load"),
        (STOCK, "json.codecs.builtins.exec"),
        ("sglang_lp", f"builtins.{NAME}"),
        ("builtins", "eval.__call__"),
        ("", f"{MODULE}.{NAME}"),
    ):
        yield f"stack-global-{module}-{name}", framed(named(module, name))
        yield (
            f"stack-global-memoized-{module}-{name}",
            framed(text(module) + MEMOIZE + text(name) + MEMOIZE + STACK_GLOBAL + MEMOIZE),
        )
        yield f"global-{module}-{name}", proto(4, old_named(module, name))


# fickling, DuplicateProto and MisplacedProto; PickleFuzzer, arXiv 2605.15084.
def n14_proto_as_a_switch() -> Pickles:
    yield "raised", b"\x80\x02\x80\x04" + old_named(MODULE, "os.system") + STOP
    yield "lowered", b"\x80\x04\x80\x02" + old_named("__builtin__", "len") + STOP
    yield "twice", b"\x80\x04" + GOOD
    yield "again-inside", GOOD[:-1] + b"\x80\x04" + STOP
    yield "late", old_named(*OK) + b"\x80\x02q\x00."
    yield "absent", GOOD[2:]


# pickle's fix_imports maps Python 2 names for protocols below 3.
def n15_python2_names() -> Pickles:
    for module, name in (
        ("__builtin__", "eval"),
        ("__builtin__", "apply"),
        ("copy_reg", "_reconstructor"),
        ("commands", "getoutput"),
        ("cPickle", "loads"),
        ("urllib2", "urlopen"),
        ("exceptions", "SystemExit"),
    ):
        for version in (2, 3):
            yield f"{module}.{name}-p{version}", proto(version, old_named(module, name) + b"q\x00")


# CVE-2025-1716 and the picklescan deny list: the same function under another module's name.
def n16_platform_aliases() -> Pickles:
    for module, name in (
        ("posix", "system"),
        ("nt", "system"),
        ("_posixsubprocess", "fork_exec"),
        ("_io", "open"),
        ("_operator", "attrgetter"),
        ("_pickle", "loads"),
        ("pkgutil", "resolve_name"),
        ("runpy", "_run_code"),
        ("pip", "main"),
    ):
        yield f"{module}.{name}", wire.reference_pickle(module, name)
        yield f"{module}.{name}-called", framed(named(module, name) + text("x") + TUPLE1 + REDUCE)


# The frozen importer of CPython 3.11 to 3.13 cuts a name at NUL, so 'os\0' is a second os.
def n17_nul() -> Pickles:
    for module in ("os\0", "os\0anything", "io\0", "posixpath\0x", "runpy\0q", MODULE + "\0"):
        for name in ("system", NAME):
            yield f"{module!a}-{name}", framed(named(module, name))
            yield f"{module!a}-{name}-global", proto(2, old_named(module, name) + b"q\x00")
    yield "name", framed(named(MODULE, NAME + "\0"))


# Unicode TR 36; sglang PR #27315 compared bare class names.
def n18_lookalikes() -> Pickles:
    for module, name in (
        (MODULE.replace("a", "\u0430"), NAME),
        (MODULE.replace("s", "\uff53"), NAME),
        (MODULE, NAME.replace("i", "\u0456", 1)),
        (MODULE, NAME.replace("i", "i\u0307", 1)),
        (MODULE, "\u200b" + NAME),
        (MODULE + ".", NAME),
        (MODULE + " ", NAME),
        (" " + MODULE, NAME),
        (MODULE + "\r", NAME),
        (MODULE, NAME + "\r"),
        (MODULE.upper(), NAME),
        (MODULE, NAME.lower()),
        ("sglang_lp..builtins", NAME),
        ("sglang_lp.builtinsX", NAME),
        ("sglang_lp_evil.builtins", NAME),
        ("evil", NAME),
        ("__main__", NAME),
        (STOCK + " ", NAME),
        ("sglang..srt.sampling.custom_logit_processor", NAME),
    ):
        label = ascii(f"{module}:{name}")
        body = text(module) + MEMOIZE + text(name) + MEMOIZE + STACK_GLOBAL + MEMOIZE
        yield label, framed(body)
        yield f"{label}-global", proto(3, old_named(module, name) + b"q\x00")


# sglang PR #34370: the same function re-exported by a module that an allow list trusts.
def n19_other_names_of_modules() -> Pickles:
    for module, name in (
        ("sglang_lp.builtins.tokens.disallowed_tokens", NAME),
        ("sglang_lp.builtins.tokens.disallowed_tokens", "Parameters"),
        ("sglang_lp.processor", "LogitProcessor"),
        ("sglang_lp.processor", "wire"),
        ("sglang_lp.builtins", "disallowed_tokens"),
        ("sglang_lp.builtins", "__all__"),
        ("sglang_lp.builtins", "__getattr__"),
        (STOCK, "CustomLogitProcessor"),
        (STOCK, "ThinkingBudgetLogitProcessor"),
        (STOCK, "lru_cache"),
        (STOCK, "ABC"),
        (STOCK, "TYPE_CHECKING"),
        (STOCK, "_cache_from_str"),
    ):
        for protocol in (0, 2, 4):
            pickled = wire.reference_pickle(module, name, protocol)
            yield f"{module}.{name}-p{protocol}", pickled


# By value with the identity of an allowed class: sglang PR #27315 would return it.
def n20_spoofed_identity() -> Pickles:
    create = named("dill._dill", "_create_type")
    base = named(*OK) + TUPLE1
    body = {"__module__": MODULE, "__qualname__": NAME}
    items = b"".join(text(key) + text(value) for key, value in body.items())
    arguments = MARK + named("builtins", "type") + text(NAME) + base
    arguments += EMPTY_DICT + MARK + items + b"u" + b"t"
    yield "subclass", framed(create + arguments + REDUCE)
    yield (
        "type-call",
        framed(named("builtins", "type") + MARK + text(NAME) + base + EMPTY_DICT + b"t" + REDUCE),
    )
    yield "register", framed(named(STOCK, "CustomLogitProcessor.register"))


# A warm extension cache skips find_class in the C and in the Python unpickler.
def n21_extensions() -> Pickles:
    for code in (0, 1, 127, 255):
        yield f"ext1-{code}", proto(2, b"\x82" + bytes([code]))
    for code in (0, 1, 65535):
        yield f"ext2-{code}", proto(2, b"\x83" + struct.pack("<H", code))
    for code in (0, 1, -1, 2**31 - 1):
        yield f"ext4-{code}", proto(2, b"\x84" + struct.pack("<i", code))


# torch.load runs on persistent ids; out-of-band buffers came with protocol 5.
def n22_persistent_ids() -> Pickles:
    yield "persid", b"P" + f"{MODULE}.{NAME}".encode() + b"\n."
    yield "binpersid", proto(4, text(NAME) + b"Q")
    yield "buffer", proto(5, b"\x97")
    yield "readonly-buffer", proto(5, b"\x97\x98")


# dill resolves these itself: GLOBAL '__builtin__ __main__' is the live __main__.__dict__.
def n23_names_that_only_dill_knows() -> Pickles:
    main = old_named("__builtin__", "__main__")
    yield "main-dict", proto(2, main)
    yield "main-dict-set", proto(2, main + text("x") + text("y") + b"s")
    yield "main-dict-memo", proto(2, main + b"q\x00")
    yield "dill-dill", proto(2, old_named("dill.dill", "_load_type") + b"q\x00")
    yield "none-type", proto(2, old_named("__builtin__", "NoneType") + b"q\x00")
    yield "class-of-main", wire.reference_pickle("__main__", NAME)


# skops test_loss_node_does_not_import_before_audit: looking a name up imports its module.
def n24_imports() -> Pickles:
    for module, name in (
        ("colorsys", "nope"),
        ("xml.nope", "nope"),
        ("antigravity", "nope"),
        ("this", "s"),
        ("idlelib.pyshell", "main"),
        ("test.support", "nope"),
        ("turtle", "Turtle"),
    ):
        for protocol in (0, 4):
            pickled = wire.reference_pickle(module, name, protocol)
            yield f"{module}.{name}-p{protocol}", pickled


# fickling GHSA-mxhj-88fx-4pcv and others: what follows STOP is ignored by every loader.
def n25_trailing_bytes() -> Pickles:
    for label, tail in (
        ("zero", b"\0"),
        ("newline", b"\n"),
        ("stop", STOP),
        ("itself", GOOD),
        ("many-zeros", bytes(400)),
    ):
        for protocol in wire.PROTOCOLS:
            pickled = wire.reference_pickle(*OK, protocol)
            yield f"{label}-p{protocol}", pickled + tail
    yield "megabyte", GOOD + bytes(1 << 20)


# picklescan malicious6: a second pickle after STOP.
def n26_several_pickles() -> Pickles:
    evil = old_named(*SYSTEM) + b"(S'id'\ntR."
    yield "benign-first", GOOD + evil
    yield "benign-last", evil + GOOD
    yield "benign-twice", GOOD + GOOD


# CPython gh-127079: STOP on an empty or untidy stack.
def n27_stack() -> Pickles:
    yield "empty", b""
    yield "stop", STOP
    yield "no-stop", GOOD[:-1]
    yield "leftover", framed(b"K\x01" + named(*OK))
    yield "two-values", b"K\x01K\x02."
    yield "mark-below", framed(MARK + named(*OK))
    yield "mark-on-top", GOOD[:-1] + MARK + STOP
    yield "underflow", framed(POP + named(*OK))


# CPython gh-128853 and gh-154848: frames that lie.
def n28_frames() -> Pickles:
    body = GOOD[11:]
    for label, size in (
        ("zero", 0),
        ("one", 1),
        ("short", len(body) - 1),
        ("long", len(body) + 1),
        ("huge", 2**63),
        ("max", 2**64 - 1),
    ):
        yield label, b"\x80\x04\x95" + struct.pack("<Q", size) + body
    yield "absent", b"\x80\x04" + body
    yield "nested", b"\x80\x04\x95" + struct.pack("<Q", len(body) + 9) + GOOD[2:11] + body
    yield "repeated", GOOD[:11] + GOOD[2:11] + body
    yield "in-p2", b"\x80\x02" + GOOD[2:]


# genops accepts protocol numbers that no loader does.
def n29_protocol_numbers() -> Pickles:
    for version in (0, 1, 2, 3, 6, 128, 255):
        yield f"p{version}", b"\x80" + bytes([version]) + GOOD[2:]
    yield "4-as-1", old_named(*OK) + b"q\x00" + b"\x80\x04."


# "nullifAI", ReversingLabs 2025: a stream that breaks after its side effect.
def n31_broken_after_a_side_effect() -> Pickles:
    call = named(*SYSTEM) + text("id") + TUPLE1 + REDUCE
    for label, tail in (("unknown", b"\xff"), ("underflow", POP * 9), ("cut", b"\x8c\x09abc")):
        yield label, b"\x80\x04" + call + tail
        yield f"{label}-then-good", b"\x80\x04" + call + tail + GOOD


# CPython gh-115952 / PR #119204: 14 bytes that take 1.5 GB.
def n32_memo_bombs() -> Pickles:
    yield "put", b"K\x01p100000000\n."
    yield "long-binput", b"K\x01r" + struct.pack("<I", 200_000_000) + STOP
    yield "good-put", old_named(*OK) + b"p100000000\n."


# CPython gh-135321 and others: sizes that are claimed, not sent.
def n33_claimed_sizes() -> Pickles:
    for size in (2**30, 2**40, 2**62):
        for code, label in ((b"\x8e", "bytes"), (b"\x8d", "unicode"), (b"\x96", "bytearray")):
            yield f"{label}8-{size}", proto(5, code + struct.pack("<Q", size) + b"x")
    yield "long4", proto(2, b"\x8b" + struct.pack("<i", 2**31 - 1))
    yield "long4-negative", proto(2, b"\x8b" + struct.pack("<i", -1))
    yield "binstring-negative", proto(2, b"T" + struct.pack("<i", -1))


# picklescan globalLaughs.pt, billionLaughsAlt.pkl.
def n34_billion_laughs() -> Pickles:
    step = b"".join(
        EMPTY_LIST + b"q" + bytes([i]) + MARK + (b"h" + bytes([i - 1])) * 9 + b"e"
        for i in range(1, 30)
    )
    yield "memo", proto(2, EMPTY_LIST + b"q\x00" + step)
    yield "dup", proto(2, old_named(*OK) + (DUP + TUPLE2) * 400)


# repr() of 100,000 nested tuples is a RecursionError in the one who prints it.
def n35_nesting() -> Pickles:
    yield "tuples", proto(2, NONE + TUPLE1 * 100_000)
    yield "tuples-within-the-cap", proto(2, NONE + TUPLE1 * 500)
    yield "lists", proto(2, MARK * 500 + b"l" * 500)


# 4 MB of 'N0' take pickletools.genops half a second.
def n36_many_opcodes() -> Pickles:
    yield "four-megabytes", (NONE + POP) * (2 << 20) + GOOD
    yield "within-the-cap", (NONE + POP) * 300 + GOOD


# Quadratic decimal integers; lines without an end.
def n37_long_arguments() -> Pickles:
    yield "decimal", b"L" + b"9" * 100_000 + b"L\n."
    yield "decimal-within-the-cap", b"L" + b"9" * 500 + b"L\n."
    yield "line", b"c" + b"a" * 500
    yield "i010", b"I010\n."
    yield "i0x10", b"I0x10\n."
    yield "l0x10", b"L0x10L\n."


# json and orjson stop at a depth of their own, each with its own exception.
def n38_json_size() -> Texts:
    yield "nested", "[" * 100_000
    yield "nested-within-the-cap", '{"callable":' * 80
    yield "huge-string", '{"callable": "' + "00" * (1 << 20) + '"}'
    yield "a-thousand-payloads", [wire.encode(GOOD)] * 1000


def _member(key: str, value: str) -> str:
    return f'"{key}": "{value}"'


# safetensors disallows duplicates: two parsers keep different ones.
def n39_duplicate_keys() -> Texts:
    good, evil = GOOD.hex(), wire.reference_pickle(*SYSTEM).hex()
    for first, second in ((good, evil), (evil, good), (good, good)):
        for key in ("callable", "call\\u0061ble"):
            label = f"{first[40:44]}-{second[40:44]}-{key}"
            yield label, "{" + _member("callable", first) + ", " + _member(key, second) + "}"
    yield "escaped-alone", "{" + _member("call\\u0061ble", good) + "}"


# A signature is no way in (50; sglang PR #27315), and a further key makes endless spellings of
# one class, each of which SGLang caches for ever (47).
def n40_extra_keys() -> Texts:
    for extra in (
        '"nonce": 1',
        '"": ""',
        '"Callable": "x"',
        '"__proto__": {}',
        '"signature": "00"',
    ):
        yield f"after-{extra}", "{" + _member("callable", GOOD.hex()) + ", " + extra + "}"
        yield f"before-{extra}", "{" + extra + ", " + _member("callable", GOOD.hex()) + "}"


# Where json and orjson differ.
def n41_parser_differences() -> Texts:
    for label, value in (
        ("nan", "NaN"),
        ("infinity", "-Infinity"),
        ("overflow", "1e999"),
        ("surrogate", '"\\ud800"'),
        ("comment", f'"{GOOD.hex()}" /* x */'),
        ("trailing-comma", f'"{GOOD.hex()}",'),
        ("single-quotes", f"'{GOOD.hex()}'"),
    ):
        yield label, '{"callable": ' + value + "}"
    yield "lone-surrogate-text", "\ud800"
    yield "lone-surrogate-inside", wire.encode(GOOD) + "\udfff"


# Values of the wrong type, at the top and inside.
def n42_wrong_types() -> Texts:
    for value in (1, None, [], {}, True, 1.5, [GOOD.hex()], {"callable": GOOD.hex()}):
        yield f"callable-{value!s:.12}", orjson.dumps({"callable": value}).decode()
    good = wire.encode(GOOD)
    yield from (
        ("array", f"[{good}]"),
        ("string", orjson.dumps(good).decode()),
        ("null", "null"),
        ("true", "true"),
        ("bom", "\ufeff" + good),
        ("nbsp", "\u00a0" + good),
        ("form-feed", "\f" + good),
        ("trailing", good + "x"),
        ("trailing-object", good + good),
        ("nul", good + "\0"),
        ("nul-escape", good.replace('"callable"', '"callable\\u0000"')),
        ("capital-key", good.replace("callable", "Callable")),
        ("bytes", good.encode()),
        ("bytearray", bytearray(good.encode())),
        ("int", 7),
        ("none", None),
        ("list", [good]),
        ("dict", {"callable": GOOD.hex()}),
        ("false", False),
        ("class", object),
    )


# bytes.fromhex, int(x, 16) and re.match each accept more than hex digits.
def n43_hex() -> Texts:
    good = GOOD.hex()
    for label, spelled in (
        ("upper", good.upper()),
        ("mixed", good[:-2] + "2E"),
        ("odd", good + "0"),
        ("odd-cut", good[:-1]),
        ("prefix", "0x" + good),
        ("underscore", good[:2] + "_" + good[2:]),
        ("plus", "+" + good[1:]),
        ("newline-inside", good + "\n"),
        ("fullwidth", good.replace("8", "\uff18", 1)),
        ("arabic", good.replace("8", "\u0668", 1)),
        ("letter-g", good[:-1] + "g"),
        ("nul", good + "\0"),
        ("escaped", "\\u0038" + good[1:]),
        *((f"space-{ord(c)}", good[:2] + c + good[2:]) for c in " \t\n\r\v\f\u00a0"),
    ):
        yield label, '{"callable": "' + spelled + '"}'


# SGLang's gate tests for truth, its batch for None: "" slips between them.
def n44_empty() -> Texts:
    for value in ("", " ", "\n", "{}", '""', '{"callable": ""}', "\0"):
        yield f"{value!a}", value


class _Shifty(str):
    """Equal to whatever it is compared with."""

    __slots__ = ()

    def __hash__(self) -> int:
        return hash(wire.encode(GOOD))

    def __eq__(self, other: object) -> bool:
        return True


# The verified object and the used object must be one: skops CVE-2025-54412.
def n45_two_faced_objects() -> Texts:
    yield "str-subclass", _Shifty(wire.encode(wire.reference_pickle(*SYSTEM)))
    yield "memoryview", memoryview(bytearray(wire.encode(GOOD).encode()))


# Plain names are looked up in the same table, never imported.
def n00_names() -> Texts:
    for value in (
        "os:system",
        "os.system",
        f"{MODULE}.{NAME}",
        f"{MODULE}:{NAME} ",
        f" {MODULE}:{NAME}",
        f"{MODULE}:{NAME}.Params",
        f"{MODULE}:",
        f":{NAME}",
        NAME.lower(),
        NAME + "\0",
        f"evil:{NAME}",
        "sglang_lp.processor:LogitProcessor",
        f"{STOCK}:CustomLogitProcessor",
        "__main__:Evil",
        "../../etc/passwd",
        "file:///etc/passwd",
        GOOD.hex(),
    ):
        yield f"{value!a}", value


def everything() -> Iterator[tuple[str, object]]:
    """Yield every construction as what a request would carry, with a name of its own."""
    for key, group in sorted(globals().items()):
        if key[0] == "n" and key[1:3].isdigit():
            for label, made in group():
                is_pickle = group.__annotations__["return"] == "Pickles"
                yield f"{key[1:]}-{label}", wire.encode(made) if is_pickle else made
