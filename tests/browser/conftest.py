"""One browser for all tests of this folder."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.browser import MISSING, browsing, has_chromium


class Browser:
    """Opens pages and remembers what they asked for."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path) -> None:
        self.visit(path.as_uri())

    def visit(self, url: str) -> None:
        self.driver.get_log("performance")
        self.driver.get_log("browser")
        self.driver.get(url)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def press(self, keys: str) -> None:
        self.driver.switch_to.active_element.send_keys(keys)

    def dark(self, *, on: bool) -> None:
        features = [{"name": "prefers-color-scheme", "value": "dark" if on else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def forget_the_size(self) -> None:
        self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    @property
    def errors(self) -> list[str]:
        """Console messages since the page was opened."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    @property
    def requests(self) -> list[str]:
        """URLs requested since the page was opened, its own included."""
        messages = (json.loads(entry["message"]) for entry in self.driver.get_log("performance"))
        events = (message["message"] for message in messages)
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
            # Not the first page of the browser itself, chrome://new-tab-page.
            and not event["params"]["documentURL"].startswith("chrome")
        ]


@pytest.fixture(scope="session")
def browser():
    if not has_chromium():
        pytest.skip(MISSING)
    with browsing() as driver:
        yield Browser(driver)
