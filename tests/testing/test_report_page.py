"""The page and the document of a report: every outcome is shown, and the docs list every check."""

import json
import re
from collections import Counter

import jsonschema

from polyarr.testing import LEVELS
from polyarr.testing.cases import BACKEND_CHECKS, KINDS, cases
from polyarr.testing.page import SYMBOLS, render
from polyarr.testing.report import OUTCOMES, grouped
from tests.helpers.html_page import Page
from tests.helpers.root import ROOT

SCHEMA = json.loads((ROOT / "polyarr" / "testing" / "report.schema.json").read_text())


def test_the_page_shows_every_outcome_and_escapes_what_it_shows():
    """The report is made up here, with text that looks like markup."""
    results = [
        {"level": "core", "check": "forward", "subject": op, "outcome": outcome, "reason": f"<i>{outcome}</i>",
         "snippet": "a < b", "seconds": 0.5, "uses": [], "covered": {}}
        for op, outcome in zip(("exp", "log", "sin", "cos", "tanh", "abs", "floor"), OUTCOMES, strict=True)
    ]  # fmt: skip
    counts = {level: dict.fromkeys(OUTCOMES, 0) for level in LEVELS}
    counts["core"] = dict.fromkeys(OUTCOMES, 1)
    capabilities = {"tells of writes out of bounds": True, "reports its memory": False, "ops that add in no fixed "
                    "order": ["sum"]}  # fmt: skip
    backend = {
        "name": "<b>", "verdict": "failed", "problem": "", "distribution": "x 1", "hardware": "<d>", "dtypes": ["bool"],
        "kernels": 1, "fused": 0, "groups": {"linalg": "in part"}, "replaced": {"exp": "other 2"},
        "capabilities": capabilities, "complete": False, "exceptions": ["1 known <failure>"],
        "covered": {"int8": [1234567, 1, 127]},
        "causes": [{"op": "exp", "cases": [], "message": "2 failures, all <exp>"}],
        "counts": counts, "results": results,
    }  # fmt: skip
    report = {
        "schema": 4, "when": "2026-01-01T00:00:00+00:00", "polyarr": "1", "verdict": "failed", "level": "core",
        "cases": 9, "effort": {"examples": 1, "seed": 0, "thorough": False}, "backends": [backend],
        "versions": dict.fromkeys(("python", "platform", "numpy", "ml_dtypes", "hypothesis", "pytest"), "1"),
    }  # fmt: skip
    jsonschema.validate(report, SCHEMA)
    text = render(report)
    page = Page(text)
    assert not page.tags & {"i", "b", "d"} and "&lt;i&gt;failed&lt;/i&gt;" in text and "a &lt; b" in text
    for r in results:
        assert page.cells(r["subject"])["forward"] == SYMBOLS[r["outcome"]]
        assert r["reason"] in page.titles
    assert ["int8", "1,234,567", "1", "127"] in page.rows and "Exception: 1 known &lt;failure&gt;." in text
    assert ["exp replaced by", "other 2"] in page.rows and ["ops that add in no fixed order", "sum"] in page.rows


def test_reasons_are_grouped_but_for_the_name_of_the_op():
    """The most frequent reason comes first."""
    lacking = "no fused kernel for {}: its decomposition runs"
    reasons = {"exp": lacking.format("exp"), "expm1": lacking.format("expm1"), "add": "no float"}
    results = [
        {"check": "fused", "subject": op, "outcome": "skipped", "reason": reason}
        for op, reason in {"sum": "no float64", **reasons}.items()
    ]
    assert grouped(results, "skipped") == {
        "no fused kernel for ...: its decomposition runs": ["fused-exp", "fused-expm1"],
        "no float64": ["fused-sum"],
        "no float": ["fused-add"],
    }
    assert grouped(results, "failed") == {}


def test_a_reason_names_the_group_that_is_called_like_its_op():
    reason = "small does not offer the group eig"
    result = {"check": "forward", "subject": "eig", "outcome": "not offered", "reason": reason}
    assert grouped([result], "not offered") == {reason: ["forward-eig"]}


def test_the_document_has_every_check_and_outcome():
    """docs/conformance.md lists the checks of ops, those of the backend, and the fields of a report."""
    text = (ROOT / "docs" / "conformance.md").read_text()
    table = text.partition("## Checks")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)
    assert listed == [*KINDS, "DTYPE", *(f"backend-{subject}" for subject in BACKEND_CHECKS), "layer"]
    assert all(f"`{outcome}`" in text for outcome in OUTCOMES)
    assert SCHEMA["$defs"]["result"]["properties"]["outcome"]["enum"] == list(OUTCOMES)
    assert set(SCHEMA["$defs"]["backend"]["required"]) == SCHEMA["$defs"]["backend"]["properties"].keys()


def test_the_page_counts_the_cases():
    text = (ROOT / "docs" / "conformance.md").read_text()
    listed = dict(re.findall(r"^\| `(core|autograd|nn|gpt|huge|endurance)` \| (\d+) \|$", text, re.MULTILINE))
    assert listed == {level: str(n) for level, n in Counter(case.level for case in cases()).items()}
