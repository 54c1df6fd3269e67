"""Ops from outside of this package: written as MNN's `Plugin`, found through the entry-point group `mnnconvert.ops`.

A package that adds an op declares, under that group, a module which uses `plugin` here and `onnx_op` of the ONNX
frontend. The module is imported when a model holds an op that this package does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar, dataclass_transform

import numpy as np

from mnnconvert.errors import ConversionError
from mnnconvert.ops.base import OPS, READERS, Emission, Fields, Form, Op, attribute_names

GROUP = "mnnconvert.ops"
PLUGINS: dict[str, type[PluginOp]] = {}
_loaded: dict[str, str] = {}  # entry points that were imported, by name


class PluginOp(Op):
    """Base of ops from outside: attributes are int, float, bool, str, or tuples of one of int, float and str."""

    plugin: ClassVar[str]
    form = Form("Plugin", "Plugin")

    def emit(self, *inputs: Any, **named: Any) -> Emission:
        attributes = [_attribute(name, getattr(self, name)) for name in attribute_names(self)]
        return Emission("Plugin", "Plugin", {"type": self.plugin, "attr": attributes})


AnyPlugin = TypeVar("AnyPlugin", bound=PluginOp)


@dataclass_transform(frozen_default=True)
def plugin(name: str) -> Callable[[type[AnyPlugin]], type[AnyPlugin]]:
    """Class decorator: make a frozen dataclass of a plug-in op, known in files by `name`."""

    def add(cls: type[AnyPlugin]) -> type[AnyPlugin]:
        made = dataclass(frozen=True, eq=False, repr=False)(cls)
        made.plugin = name
        if name in PLUGINS or made.__name__ in OPS:
            raise TypeError(f"there is an op {name} ({made.__name__}) already")
        PLUGINS[name] = OPS[made.__name__] = made
        return made

    return add


class OutsideOps(PluginOp):
    """Reads a `Plugin` of a file as the op of that name; never stands in a graph itself."""

    @classmethod
    def reads(cls, fields: Fields) -> bool:
        return _find(str(fields["type"])) is not None

    @classmethod
    def parse(cls, type: str, fields: Fields) -> Op:
        found = _find(str(fields["type"]))
        assert found is not None  # `reads` has looked
        given = {a["key"]: a for a in fields.get("attr") or []}
        return found(**{f.name: _value(given[f.name], f.default) for f in _fields(found) if f.name in given})


READERS[PluginOp.form.type] = OutsideOps


def _fields(cls: type[Op]) -> tuple[Any, ...]:
    return fields(cls)  # type: ignore[arg-type]  # `plugin` made a dataclass of it


def _find(name: str) -> type[PluginOp] | None:
    if name not in PLUGINS:
        load_plugins()
    return PLUGINS.get(name)


def load_plugins() -> list[str]:
    """Import what installed packages declare under the entry-point group; the names imported now.

    Raises `broken-plugin` when a module cannot be imported.
    """
    from importlib.metadata import entry_points

    new = []
    for entry in entry_points(group=GROUP):
        if entry.name in _loaded:
            continue
        try:
            entry.load()
        except (ImportError, AttributeError, TypeError, ValueError, SyntaxError) as error:
            raise ConversionError.of(
                "broken-plugin", f"the plug-in '{entry.name}' cannot be imported: {error}", module=entry.value
            ) from error
        _loaded[entry.name] = entry.value
        new.append(entry.name)
    return new


def _attribute(name: str, value: Any) -> Mapping[str, Any]:
    """An attribute as it stands in the file."""
    if isinstance(value, bool):
        return {"key": name, "b": value, "type": "DT_BOOL"}
    if isinstance(value, int):
        return {"key": name, "i": value, "type": "DT_INT32"}
    if isinstance(value, float):
        return {"key": name, "f": value, "type": "DT_FLOAT"}
    if isinstance(value, str):
        return {"key": name, "s": value, "type": "DT_STRING"}
    kind = "s" if any(isinstance(v, str) for v in value) else "f" if any(isinstance(v, float) for v in value) else "i"
    return {"key": name, "list": {kind: list(value)}}


def _value(attribute: Fields, default: Any) -> Any:
    """The value of an attribute, in the type of its default."""
    if isinstance(default, tuple) or attribute.get("list") is not None:
        listed = attribute.get("list") or {}
        for kind, make in (("i", int), ("f", float), ("s", str)):
            if listed.get(kind) is not None and len(listed[kind]):
                return tuple(make(v) for v in (np.asarray(listed[kind]).tolist()))
        return ()
    return attribute[{"DT_BOOL": "b", "DT_INT32": "i", "DT_FLOAT": "f", "DT_STRING": "s"}[attribute["type"]]]
