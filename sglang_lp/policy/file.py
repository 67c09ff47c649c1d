"""The policy file: a TOML file, read and checked in full.

``docs/policy.md`` documents every key; a test loads its example.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sglang_lp.catalogue.source import MAX_CATALOGUES, CatalogueSource
from sglang_lp.errors import PolicyError, shown
from sglang_lp.importing import parse_entry
from sglang_lp.policy.adapt import Adapt  # noqa: TC001 - msgspec reads the annotation
from sglang_lp.policy.allowing import make_allow_list
from sglang_lp.policy.mistakes import explain
from sglang_lp.policy.sections import Decisions
from sglang_lp.policy.stock import Stock
from sglang_lp.trust.allow_list import MAX_PINS, AllowList, Pin
from sglang_lp.trust.audit import Limits
from sglang_lp.watermark.reading import read_key

if TYPE_CHECKING:
    from sglang_lp.catalogue.opened import Catalogues
    from sglang_lp.watermark.marks import Scheme

#: A policy is a page of text; a larger file is not a policy.
_MAX_FILE_BYTES = 1 << 20


class PolicyFile(Decisions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of a policy file.

    Attributes:
        builtins: Whether this toolkit's own processors are allowed.
        stock: The policy for payloads of SGLang's own processors.
        allow: Further classes, each as ``module:Class``.
        pin: Payloads that are code, each by its digest.
        adapt: Classes that were written for other engines.
        limits: The most that refusals may cost.
        catalogues: Catalogues of items, by the name that requests choose them by.
        watermark: The key file of ``WatermarkLogitProcessor``. A relative path is relative to the
            folder of the policy.
    """

    builtins: bool = True
    stock: Stock = Stock.UPGRADE
    allow: tuple[str, ...] = ()
    pin: tuple[Pin, ...] = ()
    adapt: tuple[Adapt, ...] = ()
    limits: Limits = Limits()
    catalogues: dict[str, CatalogueSource] = msgspec.field(default_factory=dict)
    watermark: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        # msgspec checks the type of files only, not of a policy that is made in code.
        if self.stock not in set(Stock):
            raise PolicyError(f"stock: expected {', '.join(Stock)}, got {shown(self.stock)}")
        for index, entry in enumerate(self.allow):
            parse_entry(entry, f"allow[{index}]")
        if len(self.pin) > MAX_PINS:
            raise PolicyError(f"pin: expected at most {MAX_PINS} pins, got {len(self.pin)}")
        if len({pin.sha256 for pin in self.pin}) < len(self.pin):
            raise PolicyError("pin: expected each sha256 once, got one twice")
        if len(self.catalogues) > MAX_CATALOGUES:
            raise PolicyError(
                f"catalogues: expected at most {MAX_CATALOGUES}, got {len(self.catalogues)}"
            )
        for name in self.catalogues:
            if not name.isidentifier():
                raise PolicyError(
                    f"catalogues: expected a name like an identifier, got {shown(name)}"
                )


class Policy(PolicyFile, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The policy of a server.

    Attributes:
        source: Its file, or another origin, for messages.
    """

    source: str = "in code"

    @classmethod
    def default(cls) -> Policy:
        """Return the policy of a server without a policy file: built-ins and upgraded stock."""
        return cls(source="by default")

    @classmethod
    def from_toml(cls, path: str | Path) -> Policy:
        """Read a policy file. Its classes are imported later, by :meth:`make_allow_list`.

        Args:
            path: A TOML file.

        Raises:
            PolicyError: The file cannot be read, is not TOML, or has a wrong key or value. The
                message names the place, and the keys or values that are expected there.
        """
        path = Path(path)
        try:
            with path.open("rb") as file:
                raw = file.read(_MAX_FILE_BYTES + 1)
        except OSError as error:
            raise PolicyError(f"policy {path}: cannot be read: {error.strerror}") from error
        if len(raw) > _MAX_FILE_BYTES:
            raise PolicyError(f"policy {path}: expected at most {_MAX_FILE_BYTES} bytes")
        try:
            keys = msgspec.toml.decode(raw, type=PolicyFile)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            said = explain(str(error), raw, PolicyFile)
            raise PolicyError(f"policy {path}: {said}") from error
        return cls(source=str(path), **msgspec.structs.asdict(keys))

    def make_allow_list(self) -> AllowList:
        """Import and check every class that the policy allows.

        Raises:
            PolicyError: An entry cannot be served; the message says which and why.
        """
        with self.named():
            return make_allow_list(
                with_builtins=self.builtins,
                stock=self.stock,
                allow=self.allow,
                adapt=self.adapt,
                pins=self.pin,
            )

    def open_catalogues(self) -> Catalogues:
        """Open every catalogue of the policy, and read its file whole.

        Raises:
            PolicyError: One cannot be opened, is damaged, or lacks a set that the policy names.
        """
        from sglang_lp.catalogue.index import CatalogueError  # which needs numpy
        from sglang_lp.catalogue.opened import Catalogues

        with self.named():
            try:
                return Catalogues(self.catalogues, Path(self.source).parent)
            except CatalogueError as error:
                raise PolicyError(str(error)) from None

    def read_watermark(self) -> Scheme | None:
        """Read the key file of the policy; ``None`` if it names none.

        Raises:
            PolicyError: It cannot be read, others may read it, or it is no key file.
        """
        if self.watermark is None:
            return None
        with self.named():
            return read_key(Path(self.source).parent / self.watermark)

    @contextmanager
    def named(self) -> Iterator[None]:
        """Put the policy's source before the message of a ``PolicyError``."""
        try:
            yield
        except PolicyError as error:
            raise PolicyError(f"policy {self.source}: {error}") from error
