"""Pages for tests, and what a browser would find wrong with them before it runs their script."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

VOID = {"meta", "link", "input", "br", "hr", "img"}


@dataclass
class Parsed(HTMLParser):
    """The elements of a page as (tag, attributes), texts by the element they stand in, and tags out of balance."""

    elements: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    texts: list[tuple[str, str]] = field(default_factory=list)
    unbalanced: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open[-1] != tag:
            self.unbalanced.append(tag)
        else:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.append((self.open[-1], data))

    def of(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


def parsed(text: str) -> Parsed:
    page = Parsed()
    page.feed(text)
    page.close()
    return page


def problems(text: str) -> list[str]:
    """What is wrong with a page that has to stand alone, be read by everyone, and say what it means."""
    page = parsed(text)
    ids = [a["id"] for _, a in page.elements if "id" in a]
    links = [a["href"] for a in page.of("a")]
    found = [f"unbalanced {tag}" for tag in (*page.unbalanced, *page.open)]
    found += [f"id {each} twice" for each in {i for i in ids if ids.count(i) > 1}]
    found += [f"link to {link}" for link in links if not link.startswith("#") or link[1:] not in ids]
    found += [f"{tag} loads {a}" for tag, a in page.elements if {"src", "srcset", "data", "action"} & set(a)]
    found += [
        f"address {a}"
        for a in re.findall(r"(?:https?:)?//[a-z][\w.-]+\.\w+[^\s\"']*", text)
        if "www.w3.org/2000/svg" not in a
    ]
    found += [
        word for word in ("@import", "url(", "<link", "<iframe", "fetch(", "XMLHttpRequest", "import(") if word in text
    ]
    found += ["a picture without a name" for a in page.of("svg") if a.get("role") == "img" and not a.get("aria-label")]
    found += ["a button without a type" for a in page.of("button") if a.get("type") != "button"]
    found += ["a heading cell without scope" for a in page.of("th") if "scope" not in a]
    found += [f"named by {a['aria-labelledby']}" for a in page.of("section") if a["aria-labelledby"] not in ids]
    found += [] if len(page.of("h1")) == 1 and page.of("html")[0].get("lang") == "en" else ["no title or language"]
    policy = [a["content"] for a in page.of("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    return found + ([] if policy and policy[0].startswith("default-src 'none'") else ["no policy"])


def data_of(text: str) -> dict[str, Any]:
    """What the script is given."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    return dict(json.loads(found[1]))


def deep_model(path: Path, blocks: int) -> Path:
    """x -> `blocks` times (product with a constant, Relu, Add of what went in) -> y, as ONNX: three nodes a block."""
    nodes, weights, before = [], [], "x"
    rng = np.random.default_rng(0)
    for i in range(blocks):
        weights.append(numpy_helper.from_array(rng.standard_normal((8, 8)).astype(np.float32), f"w{i}"))
        names = [f"body/block.{i}/{part}" for part in ("product", "relu", "sum")]
        nodes += [
            helper.make_node("MatMul", [before, f"w{i}"], names[:1], names[0]),
            helper.make_node("Relu", names[:1], names[1:2], names[1]),
            helper.make_node("Add", [names[1], before], names[2:], names[2]),
        ]
        before = names[2]
    graph = helper.make_graph(
        nodes, "deep", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8])],
        [helper.make_tensor_value_info(before, TensorProto.FLOAT, [2, 8])], weights,
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def branches(path: Path) -> Path:
    """An If whose branches hold one layer each."""
    source = """<ir_version: 8, opset_import: ["": 17]> m (bool c, float[2] x) => (float[2] y) {
        y = If (c) <then_branch = t () => (float[2] a) { a = Exp(x) },
                    else_branch = e () => (float[2] b) { b = Neg(x) }>
    }"""
    onnx.save(onnx.parser.parse_model(source), path)
    return path
