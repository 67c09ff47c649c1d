"""SGLang plugins of the tests: they record, time and disturb a server.

SGLang loads a plugin of which it finds the entry point in a folder of its import path.
"""

from pathlib import Path

__all__ = ["FLEET", "PROBES"]

#: Entry points of this room and of :mod:`support.cpu`.
PROBES = Path(__file__).with_name("probes")
#: Entry point of :mod:`support.servers.disaggregated`.
FLEET = Path(__file__).with_name("fleet")
