#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Is a report's page sound in a browser? Opens it in headless Chromium, wide and narrow.

    scripts/check_page.py REPORT.html [--shots FOLDER]

Fails, with a sentence for each fault, on any error or warning in the console, an image that did not
load, a page wider than its window, or another number of figures than there are figures/*.png beside
it. Speaks Chromium's DevTools protocol over a pipe, so that nothing but Chromium is needed.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WIDTHS = (1280, 390)
PATIENCE = 60.0
"""Seconds that Chromium may take for an answer."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--remote-debugging-pipe",
)

PROBE = """
(async () => {
  const images = [...document.images];
  await Promise.all(images.map(image => image.decode().catch(() => {})));
  return JSON.stringify({
    images: images.length,
    broken: images.filter(i => !i.naturalWidth).map(i => i.alt || i.src.slice(0, 60)),
    figures: document.querySelectorAll('figure').length,
    wide: document.documentElement.scrollWidth,
    window: document.documentElement.clientWidth,
    tall: document.documentElement.scrollHeight,
  });
})()
"""


SILENT = "Chromium gave no answer; start it by hand to see why"


class Fault(Exception):
    """Why nothing could be checked, in a sentence."""


class Browser:
    """A tab of a headless Chromium: commands in, answers and events out."""

    def __init__(self, program: str, profile: str) -> None:
        ours_in, self._out = os.pipe()
        self._in, ours_out = os.pipe()
        # Chromium reads commands from descriptor 3 and writes to 4
        shell = f'exec "$0" "$@" 3<&{ours_in} 4>&{ours_out}'
        command = ["sh", "-c", shell, program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            command, pass_fds=(ours_in, ours_out), stderr=subprocess.DEVNULL
        )
        os.close(ours_in)
        os.close(ours_out)
        self._number, self._rest, self._session = 0, b"", ""
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        try:
            self._attach()
        except BaseException:
            self._close()
            raise
        return self

    def _attach(self) -> None:
        tab = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to a command; events that come first are kept."""
        self._number += 1
        order = {"id": self._number, "method": method, "params": params}
        if self._session:
            order["sessionId"] = self._session
        try:
            os.write(self._out, json.dumps(order).encode() + b"\0")
        except BrokenPipeError as error:
            raise Fault(SILENT) from error
        while True:
            message = self._next()
            if message.get("id") != self._number:
                self.events.append(message)
            elif "error" in message:
                raise Fault(f"Chromium refused {method}: {message['error'].get('message')}")
            else:
                found: dict[str, Any] = message["result"]
                return found

    def wait_for(self, event: str) -> None:
        """Until an event has come."""
        while not any(each.get("method") == event for each in self.events):
            self.events.append(self._next())

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            read = os.read(self._in, 1 << 20) if ready else b""
            if not read:
                raise Fault(SILENT)
            self._rest += read
        first, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        return message


def complaints(events: list[dict[str, Any]]) -> list[str]:
    """What the console says that is an error or a warning."""
    found = []
    for event in events:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            found.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in (
            "error",
            "warning",
            "assert",
        ):
            found.append(" ".join(str(each.get("value", "")) for each in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            found.append(f"{params['entry']['text']} {params['entry'].get('url', '')}".strip())
    return [text.splitlines()[0] if text else "an empty message" for text in found]


def look(browser: Browser, page: Path, width: int, shots: Path | None) -> list[str]:
    """The faults of a page at a width."""
    browser.events.clear()
    browser.ask(
        "Emulation.setDeviceMetricsOverride",
        width=width,
        height=900,
        deviceScaleFactor=1,
        mobile=False,
    )
    # Chromium takes the same address again for a mere jump within the page
    browser.ask("Page.navigate", url="about:blank")
    browser.wait_for("Page.loadEventFired")
    browser.events.clear()
    browser.ask("Page.navigate", url=page.as_uri())
    browser.wait_for("Page.loadEventFired")
    answer = browser.ask(
        "Runtime.evaluate", expression=PROBE, awaitPromise=True, returnByValue=True
    )
    seen = json.loads(answer["result"]["value"])
    if shots is not None:
        _shoot(browser, shots / f"{page.stem}-{width}.png", width, seen["tall"])
    return [f"at {width} px {fault}" for fault in _faults(page, seen, complaints(browser.events))]


def _faults(page: Path, seen: dict[str, Any], said: list[str]) -> list[str]:
    files = len(list((page.parent / "figures").glob("*.png")))
    faults = [f"the console says: {text}" for text in said]
    faults += [f"an image did not load: {name}" for name in seen["broken"]]
    if seen["figures"] != files:
        faults.append(f"it has {seen['figures']} figures, figures/ has {files}")
    if seen["images"] < seen["figures"]:
        faults.append(f"it has {seen['figures']} figures and only {seen['images']} images")
    if seen["wide"] > seen["window"]:
        faults.append(f"it is {seen['wide']} px wide")
    return faults


def _shoot(browser: Browser, path: Path, width: int, height: int) -> None:
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    shot = browser.ask("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
    path.write_bytes(base64.b64decode(shot["data"]))


def check(page: Path, shots: Path | None = None) -> list[str]:
    """All faults of a page."""
    if not page.is_file():
        raise Fault(f"there is no page {page}")
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        raise Fault("no Chromium to look with; install it: apt-get install chromium")
    if shots is not None:
        shots.mkdir(parents=True, exist_ok=True)
    scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    with scratch as profile, Browser(program, profile) as browser:
        return [fault for width in WIDTHS for fault in look(browser, page, width, shots)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("--shots", type=Path, help="a folder for pictures of the page")
    given = parser.parse_args()
    try:
        faults = check(given.page.resolve(), given.shots)
    except (Fault, OSError) as error:
        faults = [str(error)]
    for fault in faults:
        print(f"{given.page}: {fault}.", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
