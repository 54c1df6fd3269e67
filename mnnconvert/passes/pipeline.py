"""The order of the passes, as data: named phases with a sentence each, and the passes by the place they are found at.

`optimizeLevel` 0 runs what a legal and right file needs; 1, the default, what never changes a result beyond rounding; 2
also what holds only for the values that models usually have, and says so in its notes.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

from mnnconvert.errors import UsageError
from mnnconvert.ir import Graph
from mnnconvert.passes.base import Pass, Report

Hook = Callable[[Graph, Pass, Report], None]


@dataclass(frozen=True)
class Entry:
    """A pass: where its class is, the lowest level at which it runs, and the option that switches it, if any."""

    path: str
    level: int = 1
    option: str = ""

    def load(self) -> type[Any]:
        module, name = self.path.split(":")
        return cast("type[Any]", getattr(import_module(f"mnnconvert.passes.{module}"), name))


@dataclass(frozen=True)
class Phase:
    """Passes with one purpose."""

    name: str
    purpose: str
    entries: tuple[Entry, ...]


PHASES = (
    Phase("clean-up", "Take out what changes nothing, and say everything once.", (
        Entry("constants:FoldConstants"), Entry("no_ops:RemoveNoOps"), Entry("constants:ShareConstants"),
        Entry("expressions:ShareExpressions"), Entry("dead_code:RemoveDeadCode"),
    )),
    Phase("canonical form", "Bring the spellings of different exporters to one.", (
        Entry("algebra:CanonicalAlgebra"), Entry("sizes:ResolveSizes"), Entry("constants:FoldConstants"),
        Entry("reshapes:ResolveReshapes"), Entry("flat_permutes:PermuteApart"), Entry("permutes:SinkPermutes"),
        Entry("reshapes:MergeReshapes"),
        Entry("expressions:ShareExpressions"),
    )),
    Phase("transformer fusion", "Make one Attention of products around a softmax, on request.", (
        Entry("fuse_attention:FuseAttention", option="transformer_fuse"),
    )),
    Phase("fusion", "Make one op of several, where MNN has one that computes the same.", (
        Entry("fuse_norm:FuseNorm"), Entry("fuse_gelu:FuseGelu"),
        Entry("fuse_gelu:ApproximateGelu", option="use_gelu_approximation"), Entry("fuse_swish:FuseSwish"),
        Entry("fuse_affine:FuseAffine"), Entry("fuse_input_affine:FuseInputAffine"), Entry("matmul:FuseMatMulBias"),
        Entry("matmul:ConvertMatMul", option="convert_matmul_to_conv"),
        Entry("split_channels:SplitChannels", option="block"), Entry("fuse_activation:FuseActivation"),
        Entry("fuse_padding:FusePadding"), Entry("sizes:ResolveSizes"), Entry("constants:FoldConstants"),
        Entry("reshapes:ResolveReshapes"), Entry("reshapes:MergeReshapes"),
        Entry("no_ops:RemoveNoOps"), Entry("constants:ShareConstants"),
        Entry("expressions:ShareExpressions"), Entry("dead_code:RemoveDeadCode"),
    )),
    Phase("export", "Write what the target runtime computes wrong in another form.", (
        Entry("legalize:Legalize", level=0),
    )),
    Phase("layout", "Decide which values are stored in channel blocks.", (
        Entry("layout:PlaceLayout", level=0), Entry("settle_steps:SettleSteps", level=0),
    )),
    Phase("names", "Let every output leave under its name.", (Entry("names:NameOutputs", level=0),)),
)  # fmt: skip

DEFAULTS = {"convert_matmul_to_conv": True, "use_gelu_approximation": False, "block": 0, "transformer_fuse": False}


def entries() -> Iterator[tuple[Phase, Entry]]:
    """Every place in the order, with its phase."""
    for phase in PHASES:
        for entry in phase.entries:
            yield phase, entry


def pass_names() -> list[str]:
    """The names by which passes can be switched off, in the order of their first place."""
    return list(dict.fromkeys(entry.load().name for _, entry in entries()))


def planned(
    *, level: int = 1, target: str = "mnn-3.6.1", disabled: Collection[str] = (),
    options: Mapping[str, Any] | None = None,
) -> list[Pass]:  # fmt: skip
    """The passes that would run, in order. Raises `unknown-pass` when a name in `disabled` is none."""
    _check_names(disabled)
    settings = {**DEFAULTS, **(options or {}), "level": level, "target": target}
    result: list[Pass] = []
    for phase in PHASES:
        for entry in phase.entries:
            cls = entry.load()
            wanted = level >= entry.level and (not entry.option or settings[entry.option])
            if wanted and cls.name not in disabled:
                result.append(_configured(cls, settings))
    return result


def run_pipeline(
    graph: Graph, *, level: int = 1, target: str = "mnn-3.6.1", disabled: Collection[str] = (),
    options: Mapping[str, Any] | None = None, hook: Hook | None = None,
) -> list[Report]:  # fmt: skip
    """Rewrite `graph` by all phases; the reports of the passes, in order.

    `options` holds those of `DEFAULTS` and any field of a pass. `hook` is called after each
    pass with the graph, the pass and its report. Raises `unknown-pass`, and what passes refuse.
    """
    reports = []
    for each in planned(level=level, target=target, disabled=disabled, options=options):
        reports.append(each.run(graph))
        if hook is not None:
            hook(graph, each, reports[-1])
    return reports


def _configured(cls: type[Any], settings: Mapping[str, Any]) -> Pass:
    """The pass with its fields taken from the settings of the same names."""
    fields = {f.name for f in dataclasses.fields(cls)}
    return cast("Pass", cls(**{k: v for k, v in settings.items() if k in fields}))


def _check_names(names: Collection[str]) -> None:
    known = pass_names()
    for name in names:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, 1, cutoff=0.4)
            hint = f"did you mean '{nearest[0]}'?" if nearest else f"the passes are {', '.join(known)}"
            raise UsageError.of("unknown-pass", f"there is no pass '{name}'", hint=hint)


def purpose(cls: type[Any]) -> str:
    """What a pass does: the first paragraph of its docstring, in one line."""
    return " ".join((cls.__doc__ or "").strip().split("\n\n")[0].split())


def purposes() -> dict[str, str]:
    """What each pass does, by its name."""
    return {cls.name: purpose(cls) for cls in (entry.load() for _, entry in entries())}


def table() -> str:
    """The passes as a Markdown table: phase, name, what it does, from which level on. `docs/passes.md` holds it."""
    lines = ["| phase | pass | what it does | runs |", "|---|---|---|---|"]
    for phase, entry in entries():
        cls = entry.load()
        runs = (
            "always" if entry.level == 0 else f"level {entry.level}" + (f", `{entry.option}`" if entry.option else "")
        )
        lines.append(f"| {phase.name} | `{cls.name}` | {purpose(cls)} | {runs} |")
    return "\n".join(lines) + "\n"
