"""The attributes of a class's instances are found on the class."""

import pytest

from sglang_lp.server.startup.attributes import has_attribute


class Base:
    in_base: int

    def begin(self):
        self.by_base = 1


class Kind(Base):
    __slots__ = ("in_slot",)
    in_class = 1

    def __init__(self, other):
        self.by_init = other.read_only

    @classmethod
    def make(cls, other):
        other.by_classmethod = 1

    @property
    def in_property(self):
        return 1


@pytest.mark.parametrize(
    "name",
    ["in_base", "by_base", "in_slot", "in_class", "by_init", "by_classmethod", "in_property"],
)
def test_an_attribute_is_found_wherever_a_class_has_it(name):
    assert has_attribute(Kind, name)


@pytest.mark.parametrize("name", ["read_only", "nowhere"])
def test_an_attribute_that_is_read_alone_is_not_had(name):
    assert not has_attribute(Kind, name)
