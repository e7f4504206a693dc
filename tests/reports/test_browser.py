"""Pages in a real browser: axe finds nothing, light and dark, on a phone and on a desk.

It needs Chromium and axe.min.js of the npm package axe-core: in node_modules, or where AXE_CORE says.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

from recbench_spark.reports import render_html
from tests.reports.test_nights import make_fallen_night
from tests.reports.test_reports import demo

ROOT = Path(__file__).resolve().parents[2]
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
AXE = Path(os.environ.get("AXE_CORE", ROOT / "node_modules" / "axe-core" / "axe.min.js"))

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(BROWSER is None, reason="Chromium is not installed"),
    pytest.mark.skipif(not AXE.is_file(), reason="npm install axe-core, or set AXE_CORE to its axe.min.js"),
]
RUN = """
for (const one of document.querySelectorAll("details")) one.open = true;
axe.run().then(({violations}) => {
  const about = (node) => node.html + " " + node.failureSummary;
  const broken = violations.map(({id, nodes}) => ({id, nodes: nodes.map(about)}));
  const wide = document.documentElement.scrollWidth > innerWidth;
  const paper = getComputedStyle(document.body).backgroundColor;
  parent.postMessage(JSON.stringify({width: innerWidth, wide, paper, broken}), "*");
});
"""
HOST = """<!doctype html><title>host</title><pre id="answer"></pre>
<script>onmessage = (e) => document.getElementById("answer").textContent = e.data</script>
<iframe title="page" style="width:{width}px;height:1600px;border:0" srcdoc="{page}"></iframe>"""


def run_axe(page: str, width: int, dark: bool, folder: Path) -> dict[str, Any]:
    """Return what axe finds on a page of this width, and whether its content is wider."""
    scheme = "all" if dark else "not all"
    shown = page.replace("(prefers-color-scheme: dark)", scheme)
    assert shown != page
    shown = re.sub(r"<meta http-equiv=[^>]*>", "", shown)  # it forbids scripts, so axe too
    inside = f"{shown}<script>{AXE.read_text()}</script><script>{RUN}</script>"
    host = folder / "host.html"
    host.write_text(HOST.format(width=width, page=escape(inside)))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=60000", "--dump-dom"]
    flags += [f"--user-data-dir={folder}/browser", "--window-size=1400,1700"]
    done = subprocess.run(
        [str(BROWSER), *flags, host.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    answer = re.search(r'<pre id="answer">(.*?)</pre>', done.stdout, re.DOTALL)
    assert answer and answer[1], done.stderr[-2000:]
    return dict(json.loads(unescape(answer[1])))


SCREENS = [(400, False), (400, True), (1280, False), (1280, True)]


@pytest.mark.parametrize(("width", "dark"), SCREENS)
@pytest.mark.parametrize("make", [make_fallen_night, demo], ids=["fallen night", "demo"])
def test_axe_finds_nothing(make: Any, width: int, dark: bool, tmp_path: Path) -> None:
    answer = run_axe(render_html(make()), width, dark, tmp_path)
    assert answer["broken"] == [] and not answer["wide"]
    assert answer["width"] == width
    assert answer["paper"] == ("rgb(20, 23, 26)" if dark else "rgb(252, 252, 250)")


def test_a_picture_without_a_name_and_a_pale_text_are_seen(tmp_path: Path) -> None:
    bad = '<img src="data:,"><p style="color: #ddd; background: #fff">pale</p></main>'
    answer = run_axe(render_html(demo()).replace("</main>", bad), 400, False, tmp_path)
    assert {"image-alt", "color-contrast"} <= {one["id"] for one in answer["broken"]}
