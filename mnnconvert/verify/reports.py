"""A verification as other programs read it: JUnit and SARIF for CI, annotations and a summary for GitHub.

All of them show the same checks: each output of each run, each gate, and the first bad layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from mnnconvert.verify.compare import OutputVerdict
from mnnconvert.verify.gates import GateResult
from mnnconvert.verify.layers import LayerReport
from mnnconvert.verify.verification import VerificationResult, VerificationRun

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
RULES = {
    "verification-missed": "An output of the converted model differs from that of its source.",
    "gate-missed": "A bound of the file of gates was not kept.",
    "layer-wrong": "The first layer that computes something else than its source.",
    "not-run": "The converted model could not be run.",
}
NOT_IN_XML = {code: "\ufffd" for code in range(32) if code not in (9, 10, 13)} | {0xFFFE: "\ufffd", 0xFFFF: "\ufffd"}


@dataclass(frozen=True)
class Check:
    """One thing that was checked: `group` is what it belongs to, `rule` one of RULES, `message` what was found."""

    group: str
    name: str
    rule: str
    passed: bool
    message: str
    place: str = ""


def checks(result: VerificationResult) -> list[Check]:
    """Everything that was checked, in the order of a report."""
    return [*_runs(result), *(_gate(gate) for gate in result.gates), *_layers(result)]


def _runs(result: VerificationResult) -> Iterator[Check]:
    for number, run in enumerate(result.runs, 1):
        group = f"run {number} ({_sizes(run)})"
        if run.comparison is None:
            yield Check(group, "run", "not-run", False, "; ".join(p.message for p in run.problems))
        else:
            yield from (_output(group, verdict) for verdict in run.comparison.outputs)


def _sizes(run: VerificationRun) -> str:
    return ", ".join(f"{name} {'x'.join(map(str, shape)) or 'scalar'}" for name, shape in run.shapes.items())


def _output(group: str, verdict: OutputVerdict) -> Check:
    m = verdict.measured
    message = verdict.reason
    if not message and m is not None and m.max_abs is not None and m.largest is not None:
        message = f"off by {m.max_abs:.3g} of {m.largest:.3g}"
    return Check(group, verdict.name, "verification-missed", verdict.passed, message, verdict.name)


def _gate(gate: GateResult) -> Check:
    found = "not measurable" if gate.value is None else f"{gate.value:.6g}"
    missed = "" if gate.missed_by is None else f", missed by {gate.missed_by:.3g}"
    name = f"{gate.gate} of {gate.output}"
    return Check("gates", name, "gate-missed", gate.passed, f"found {found}{missed}", gate.output)


def _layers(result: VerificationResult) -> Iterator[Check]:
    if result.layers is None:
        return
    bad = result.layers.first_bad
    if bad is None:
        yield Check("layers", "first bad layer", "layer-wrong", True, f"none of {len(result.layers.layers)}")
    else:
        yield Check("layers", f"first bad layer: {bad.name}", "layer-wrong", False, _blame(bad), bad.name)


def _blame(layer: LayerReport) -> str:
    source = f", source node {layer.origin[0]}" if layer.origin else ""
    return f"{layer.name} ({layer.op}{source}): {layer.reason}"


def junit(result: VerificationResult, model: str) -> str:
    """JUnit XML: a test suite per run, one for the gates and one for the layers; `model` is the name of the file."""
    every = checks(result)
    failed = sum(not check.passed for check in every)
    attributes = {"name": "mnnconvert verify", "tests": str(len(every)), "failures": str(failed)}
    root = ElementTree.Element("testsuites", attributes)
    for group in dict.fromkeys(check.group for check in every):
        members = [check for check in every if check.group == group]
        bad = sum(not check.passed for check in members)
        sizes = {"name": _xml(group), "tests": str(len(members)), "failures": str(bad), "errors": "0", "skipped": "0"}
        suite = ElementTree.SubElement(root, "testsuite", sizes)
        for check in members:
            case = ElementTree.SubElement(suite, "testcase", {"name": _xml(check.name), "classname": _xml(model)})
            if check.passed:
                ElementTree.SubElement(case, "system-out").text = _xml(check.message)
            else:
                failure = ElementTree.SubElement(case, "failure", {"type": check.rule, "message": _xml(check.message)})
                failure.text = _xml(check.message)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _xml(text: str) -> str:
    """Text without what XML 1.0 cannot say: names come from model files. Lone surrogates go too."""
    return text.translate(NOT_IN_XML).encode("utf-8", "replace").decode("utf-8")


def sarif(result: VerificationResult, source: str, model: str, version: str) -> dict[str, Any]:
    """A SARIF 2.1.0 log with a result for each check that failed; files as relative or absolute URI references."""
    failed = [check for check in checks(result) if not check.passed]
    rules = [{"id": name, "shortDescription": {"text": text}} for name, text in RULES.items()]
    driver = {"name": "mnnconvert", "version": version, "semanticVersion": version, "rules": rules}
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": True}],
        "artifacts": [{"location": {"uri": _uri(path)}} for path in (model, source)],
        "results": [_sarif_result(check, model) for check in failed],
        "columnKind": "unicodeCodePoints",
    }
    return {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}


def _sarif_result(check: Check, model: str) -> dict[str, Any]:
    location: dict[str, Any] = {"physicalLocation": {"artifactLocation": {"uri": _uri(model), "index": 0}}}
    if check.place:
        location["logicalLocations"] = [{"name": check.place, "fullyQualifiedName": f"{check.group}/{check.place}"}]
    return {
        "ruleId": check.rule,
        "ruleIndex": list(RULES).index(check.rule),
        "level": "error",
        "message": {"text": f"{check.name}: {check.message}"},
        "locations": [location],
        "partialFingerprints": {"check/v1": f"{check.rule}/{check.place or check.name}"},
    }


def _uri(path: str) -> str:
    from pathlib import PurePath
    from urllib.parse import quote

    return quote(PurePath(path).as_posix())


def github_annotations(result: VerificationResult, model: str) -> list[str]:
    """Workflow commands that GitHub shows beside a run: one line for each check that failed."""
    return [
        f"::error file={_property(model)},title={_property(check.rule)}::{_data(f'{check.name}: {check.message}')}"
        for check in checks(result)
        if not check.passed
    ]


def _data(text: str) -> str:
    """The escapes of GitHub's workflow commands."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def markdown(result: VerificationResult, source: str, model: str) -> str:
    """A summary with a table of the checks: what failed first."""
    every = sorted(checks(result), key=lambda check: check.passed)
    failed = sum(not check.passed for check in every)
    verdict = f"{failed} of {len(every)} checks failed" if failed else f"all {len(every)} checks passed"
    rows = [("", "Check", "Of", "Found"), ("---",) * 4]
    rows += [("ok" if c.passed else "**missed**", c.name, c.group, c.message) for c in every]
    lines = ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return "\n".join([f"### {_cell(model)} against {_cell(source)}: {verdict}", "", *lines, *_found(result)]) + "\n"


def _found(result: VerificationResult) -> Sequence[str]:
    finding = result.bisection.lines() if result.bisection is not None else []
    return ["", "```", *finding, "```"] if finding else []


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
