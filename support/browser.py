"""A real Chromium without a window; it makes no requests of its own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["MISSING", "browsing", "has_chromium"]

MISSING = "needs Chromium: apt-get install chromium chromium-driver"

_SWITCHES = (
    "--headless",
    "--no-sandbox",  # it runs as root in a container
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # no name resolves
    "--window-size=1400,1000",
)


def has_chromium() -> bool:
    """Tell whether Debian's packages chromium and chromium-driver are there."""
    return bool(shutil.which("chromium") and shutil.which("chromedriver"))


@contextmanager
def browsing() -> Iterator[Any]:
    """Start a browser with an empty profile; it notes its console and every request."""
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for switch in _SWITCHES:
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options.add_argument(f"--user-data-dir={profile}")
        driver = Chrome(options=options, service=ChromeService(shutil.which("chromedriver")))
        try:
            yield driver
        finally:
            driver.quit()
