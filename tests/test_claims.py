# SPDX-License-Identifier: Apache-2.0

"""Every sentence with a measured figure, computed again from the runs that are kept in results/.

A claim is a piece of a page with gaps, and a function that fills them from committed files. It
fails if the page says something else, or if the figures no longer follow. A figure on a page
(a percentage, points, a signed decimal) that no claim covers must stand in ELSEWHERE with a reason.
The sentences are in claims/docs_pages.py and claims/results_pages.py, the functions beside them, by
what was studied.
"""

from __future__ import annotations

import json
import re
import runpy

import pytest

from tests.claims import docs_pages, results_pages, sofim_readings
from tests.claims.files import RESULTS, ROOT, Claim, results_of, rows
from tests.claims.results_pages import HELPS

CLAIMS = [*docs_pages.CLAIMS, *results_pages.CLAIMS, *sofim_readings.CLAIMS]

pytestmark = pytest.mark.skipif(not RESULTS.exists(), reason="an sdist has no results")


def words(page: str) -> str:
    """A page on one line, without the marks of bold words."""
    return " ".join((ROOT / page).read_text(encoding="utf-8").replace("**", "").split())


def sentence(claim: Claim) -> str:
    """What the page has to say."""
    return claim.text.format(*claim.figures()).replace("**", "")


def unsaid(claims: list[Claim]) -> list[str]:
    """What the runs give, and the pages do not say."""
    return [sentence(each) for each in claims if sentence(each) not in words(each.page)]


@pytest.mark.parametrize("page", sorted({claim.page for claim in CLAIMS}))
def test_the_page_says_what_the_runs_give(page: str) -> None:
    assert unsaid([claim for claim in CLAIMS if claim.page == page]) == []


# ---------------------------------------------------------------------- figures that nobody checks

FIGURE = re.compile(
    r"(?<![\w.^-])[+-]?\d+(?:\.\d+)?(?: (?:and|to|or) [+-]?\d+(?:\.\d+)?)* (?:%|points?\b)"
    r"|(?<![\w.])[+-]\d+\.\d+"
)
MADE = {"theory": "lab/tests/test_theory.py"}
"""Folders whose page is made from its files, and what holds the two together."""
PAGES = [
    "README.md",
    "results/README.md",
    "results/how-made.md",
    HELPS,
    *sorted(
        str(path.relative_to(ROOT))
        for path in (*RESULTS.glob("*/README.md"), *ROOT.glob("lab/studies/*/results/README.md"))
        if path.parents[1].name not in MADE
    ),
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
]

CONFIDENCE = "the level of an interval"
ELSEWHERE = {
    "lab/studies/sofim-notes/results/README.md": {r"2\.37 points": "what the notes say"},
    "docs/accounting.md": {r"0\.02 % of noise": "a bound that accounting adds, tests/mechanisms"},
    "docs/audit.md": {
        r"% (short|too far|too little)": "planted faults: tests/audit/test_planted.py"
    },
    "docs/choose.md": {r"95 % interval": CONFIDENCE},
    "docs/exact-noise.md": {r"0\.02 % of noise": "the slack in core/rows.py"},
    "docs/flower-accountant.md": {
        r"5 to 9 % smaller": "tests/training/flower/test_accountants.py, ten settings"
    },
    "docs/from-flower.md": {r"7 to 11 % above": "tests/test_flower_own_dp.py"},
    "docs/methods.md": {r"round, 5 % of mu|round, 10 %": "shares that client/fedauto.py declares"},
    "docs/privacy.md": {
        r"6 % better than constant": "tests/mechanisms/test_banded.py",
        r"exceeds 1 % of it": "a limit that a plan refuses at",
    },
    "docs/quickstart.md": {
        r"accuracy \d+\.\d %|│ +\d+\.\d %": "samples of what commands print: scripts/run_page.py"
    },
    "docs/scale.md": {r"20 % may drop out|5 % collude": "what is asked for, not what was measured"},
    "docs/secure-sum.md": {
        r"exceeds 1 % of delta": "a limit that a plan refuses at",
        r"sqrt\(20/15\) - 1 = 15 %": "arithmetic on the spot",
    },
    "docs/statistics.md": {r"95 % interval|probability of about 95 %": CONFIDENCE},
    "docs/trust.md": {r"\d %": "the table of guesses: tests/test_docs.py, from the accountant"},
    "docs/use-the-model.md": {
        r"accuracy 8[57]\.\d %": "samples of what commands print: scripts/run_page.py",
        r"figures with 95 % intervals": CONFIDENCE,
    },
    "docs/watching.md": {r"accuracy 55\.3 %": "what a screen looks like, of a run of no interest"},
    "docs/your-own-optimizer.md": {
        r"13 points behind|95 % interval": "the page runs its own study"
    },
    "README.md": {
        r"Apache--2\.0": "a badge: tests/test_packaging.py",
    },
    "lab/studies/adamw-small/results/README.md": {
        r"4\.7 to 6\.6 points": "the supplement's Table 11, as printed"
    },
    "lab/studies/adaptive-clip/results/README.md": {
        r"1 % of the squared mu": "a share that recipes/schema.py takes"
    },
    "lab/studies/heterogeneity/results/README.md": {
        r"significant at 30 % or 10 %": "shares of clients, no result"
    },
    "lab/studies/participation/results/README.md": {
        r"within 1 % above": "a tolerance of the search for noise"
    },
    "lab/studies/sst2-lora/results/README.md": {
        r"rounds of 2 %": "a share of the records",
        r"56\.42 % both": "two engines, six rounds: not kept",
    },
    HELPS: {
        r"about 74 %|ours 74 %|about 68\.5 %": "linear probes without privacy, not kept",
        r"57\.2 and 54\.7 %": "the paper's Table 10, as printed",
    },
    "lab/studies/auto-unseen/results/README.md": {
        r"more than 0\.15 points": "a table that was replaced by the one at cap 2",
    },
}
"""Page -> what stands around a figure -> where it is checked, or why it cannot be."""


def unchecked(page: str) -> list[str]:
    """Figures of a page that are neither in a claim nor excused."""
    text = words(page)
    spans = []
    for claim in (each for each in CLAIMS if each.page == page):
        said = re.escape(sentence(claim))
        spans += [(found.start(), found.end()) for found in re.finditer(said, text)]
    missing = []
    for found in FIGURE.finditer(text):
        inside = any(start <= found.start() and found.end() <= end for start, end in spans)
        around = text[max(0, found.start() - 25) : found.end() + 25]
        if not inside and not any(re.search(each, around) for each in ELSEWHERE.get(page, {})):
            missing.append(around)
    return missing


@pytest.mark.parametrize("page", PAGES)
def test_every_figure_is_checked(page: str) -> None:
    assert unchecked(page) == [], "add a claim, or say in ELSEWHERE where it is checked"


@pytest.mark.parametrize("page", ELSEWHERE)
def test_every_excuse_is_needed(page: str) -> None:
    for pattern, why in ELSEWHERE[page].items():
        assert why
        assert re.search(pattern, words(page)), f"{pattern!r} excuses nothing on {page}"


def test_a_wrong_figure_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim fails, and so does the search for figures that no claim covers."""
    true, page = words("README.md"), "README.md"
    claim = next(each for each in CLAIMS if "points for DP-FedGD at epsilon 0.5" in each.text)
    (gain,) = claim.figures()
    planted = true.replace(sentence(claim), claim.text.format(gain + 0.1))
    assert planted != true
    monkeypatch.setattr(f"{__name__}.words", lambda name: planted if name == page else "")
    assert f"{gain:+.1f} points" in unsaid([claim])[0]
    assert any(f"{gain + 0.1:+.1f} points" in each for each in unchecked(page))


def test_a_sentence_without_a_claim_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    page = "docs/choose.md"
    more = f"{words(page)} Nothing backs this: 7.7 points better."
    monkeypatch.setattr(f"{__name__}.words", lambda name: more)
    assert [each for each in unchecked(page) if "7.7 points" in each]


def test_a_run_that_changes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = next(each for each in CLAIMS if "points for DP-FedGD at epsilon 0.5" in each.text)
    (gain,) = claim.figures()
    moved = [
        {**row, "accuracy": str(float(row["accuracy"]) + 0.01)}
        if (row["trust"], row["epsilon"]) == ("distributed", "0.5")
        else row
        for row in rows("secure-sum")
    ]
    monkeypatch.setattr("tests.claims.files.rows", lambda folder, name="final.csv": moved)
    assert f"{gain + 1:+.1f} points" in unsaid([claim])[0]


def test_the_control_is_the_committed_one() -> None:
    """settings.json of DP-FedSOFIM's main study is what the control was run at."""
    chosen = json.loads((results_of("sofim-cifar10") / "settings.json").read_text(encoding="utf-8"))
    point = chosen["epsilon 5 | DP-FedSOFIM"]["set"]
    ran = next(
        row
        for row in rows("sofim-control", "control.csv")
        if (row["study"], row["cell"]) == ("sofim-cifar10", "epsilon 5")
    )
    assert (float(ran["rate"]), float(ran["rho"])) == (
        point["server.1.rate"],
        point["server.0.rho"],
    )


def test_what_the_evidence_took_is_counted_from_its_runs() -> None:
    """results/evidence.md is what ``lab/scripts/evidence.py --cost`` writes."""
    made = runpy.run_path(str(ROOT / "lab/scripts/evidence.py"))["cost_table"]()
    assert (RESULTS / "evidence.md").read_text(encoding="utf-8") == made


def test_the_tables_of_the_tree_are_made_from_its_file() -> None:
    """results/fleet/tree.md is what ``lab/scripts/tree_load.py --table`` writes."""
    made = runpy.run_path(str(ROOT / "lab/scripts/tree_load.py"))["table"]
    files = [json.loads((RESULTS / f"fleet/{name}.json").read_text()) for name in ("tree", "fleet")]
    assert (RESULTS / "fleet/tree.md").read_text(encoding="utf-8") == made(*files)


def test_results_are_small() -> None:
    assert sum(path.stat().st_size for path in RESULTS.rglob("*") if path.is_file()) < 15 * 2**20
