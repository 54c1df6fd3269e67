"""GraphDef -> graph: translates what the outputs depend on, and reports everything that stands in the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mnnconvert.errors import ConversionError, Diagnostic, MnnConvertError
from mnnconvert.frontends.common.compose import cast
from mnnconvert.frontends.common.signature import UniqueNames, check_names, input_shape, open_sizes
from mnnconvert.frontends.common.tensors import to_graph_type
from mnnconvert.frontends.tensorflow import rules  # noqa: F401  (registers the rules)
from mnnconvert.frontends.tensorflow.frames import Frame, frames_of
from mnnconvert.frontends.tensorflow.model import SourceGraph, SourceModel, SourceNode, SourceTensor
from mnnconvert.frontends.tensorflow.node import TfNode
from mnnconvert.frontends.tensorflow.ports import DEFAULTED, default_of, place, reachable
from mnnconvert.frontends.tensorflow.registry import RULES, Rule
from mnnconvert.frontends.tensorflow.signal import LINEAR, Pair, by_parts, is_complex
from mnnconvert.frontends.tensorflow.types import note_type, port_type
from mnnconvert.frontends.tensorflow.wire import BAD
from mnnconvert.ir import ArrayTensor, Builder, Graph, LazyTensor, Shape, Value

DEEPEST = 32  # functions inside functions
MOST_CALLS = 20_000  # functions that call functions grow exponentially
NODES_NAMED = 3  # nodes named per unsupported op
SOURCES = ("Placeholder", "PlaceholderV2", DEFAULTED, "Const")  # what needs no rule
FUNCTION_ATTRIBUTES = ("f", "body", "cond", "then_branch", "else_branch")
GIVEN_TYPES = ("dtype", "DstT", "out_type", "output_type", "T", "Tparams", "Tidx")


class Pending(Exception):  # noqa: N818  (no error: a way back)
    """A rule asked for an operand that has not been translated yet."""

    def __init__(self, node: str):
        super().__init__(node)
        self.node = node


class Importer:
    """Translates one model. `shapes` fixes open sizes of inputs by name, `batch` an open first size."""

    def __init__(self, model: SourceModel, shapes: Mapping[str, Shape] | None = None, batch: int = 0):
        self.model = model
        self.shapes = dict(shapes or {})
        self.batch = batch
        self.problems: list[Diagnostic] = []
        self.graph_name = UniqueNames()
        self.calls = 0  # of functions
        self._frames: dict[str, dict[str, Frame]] = {}

    def run(self) -> Graph:
        """The graph; ConversionError with all problems when there are any."""
        self._check_ops()
        builder = Builder(Graph(name=self.model.graph.name or "main", source="TENSORFLOW"))
        scope = Scope(self, builder, self.model.graph)
        self._inputs(scope)
        scope.resolve([reference for _, reference in self.model.outputs])
        if self.problems:
            raise ConversionError(self.problems)
        for name, reference in self.model.outputs:
            scope.leave(name, reference)
        return builder.graph

    def _check_ops(self) -> None:
        """Refuse all ops without a rule at once, in what the outputs depend on and the functions that it calls."""
        missing: dict[str, list[str]] = {}
        graph = self.model.graph
        used = reachable(graph, [place(reference)[0] for _, reference in self.model.outputs])
        todo = [[n for n in graph.nodes.values() if n.name in used]]
        seen: set[str] = set()
        while todo:
            for node in todo.pop():
                if node.op in self.model.functions or node.op in SOURCES:
                    called = [node.op]
                else:
                    called = [str(node.attribute(name)) for name in FUNCTION_ATTRIBUTES if node.has(name)]
                    called += node.attribute("branches", None) or []
                    if node.op not in RULES:
                        missing.setdefault(node.op, []).append(node.name)
                for name in set(called) & set(self.model.functions) - seen:
                    seen.add(name)
                    function = self.model.functions[name]
                    used = reachable(function, [place(reference)[0] for reference in function.results])
                    todo.append([n for n in function.nodes.values() if n.name in used])
        if missing:
            raise ConversionError(_unsupported(op, nodes) for op, nodes in missing.items())

    def _inputs(self, scope: Scope) -> None:
        names = [name for name, _ in self.model.inputs]
        check_names(self.shapes, names)
        for name, reference in self.model.inputs:
            node = self.model.graph.nodes.get(place(reference)[0])
            if node is None:
                raise ConversionError.of(BAD, f"there is no node '{reference}' for the input '{name}'")
            scope.enter(name, node, self._input_shape(name, node))

    def _input_shape(self, name: str, node: SourceNode) -> Shape | None:
        declared = node.attribute("shape", None)
        if declared is None or (declared == () and node.op != DEFAULTED and not _is_scalar(node)):
            return self.shapes.get(name)
        return input_shape(name, open_sizes(name, declared), self.shapes, self.batch)

    def frames(self, source: SourceGraph) -> dict[str, Frame]:
        """The loops of a graph that are wired from single nodes."""
        if source.name not in self._frames:
            self._frames[source.name] = frames_of(source)
        return self._frames[source.name]


class Scope:
    """The nodes of one graph or function as values of one graph, translated when they are asked for."""

    def __init__(self, importer: Importer, builder: Builder, source: SourceGraph, parent: Scope | None = None):
        self.importer = importer
        self.builder = builder
        self.source = source
        self.parent = parent
        self.prefix: str = parent.prefix if parent is not None else ""
        self.calls: tuple[str, ...] = parent.calls if parent is not None else ()  # functions this is the body of
        self.values: dict[tuple[str, int], Any] = {}
        self.done: set[str] = set()
        self.poisoned: set[str] = set()
        self.cuts: dict[str, Callable[[Scope, TfNode], Any]] = {}  # nodes that mean something else in here
        self.loops: dict[str, dict[str, Any]] = {}  # results of loops by frame and Switch
        self.constants: dict[str, SourceTensor] = {}
        self.weights: dict[tuple[Value, tuple[int, ...]], Value] = {}

    def path(self, name: str) -> str:
        """A node's name with those of the calls around it."""
        return f"{self.prefix}{name}"

    def place(self, reference: str) -> tuple[str, int]:
        """Node and port of a reference."""
        name, port = place(reference)
        if not port or port.isdigit():
            return name, int(port or 0)
        result, _, index = port.partition(":")
        node = self.source.nodes.get(name)
        rule = RULES.get(node.op) if node is not None else None
        start = rule.results.index(result) if rule is not None and result in rule.results else 0
        return name, start + (int(index) if index.isdigit() else 0)

    def get(self, reference: str) -> Any:
        """What a reference means. Raises Pending where that has to be translated first."""
        key = self.place(reference)
        if key not in self.values:
            if key[0] in self.poisoned:
                raise ConversionError(())
            if key[0] in self.done:
                raise ConversionError.of(BAD, f"there is no result '{reference}'")
            raise Pending(key[0])
        return self.values[key]

    def fetch(self, references: Sequence[str]) -> list[Any]:
        """What references mean, translated now. An error without diagnostics says that a problem was noted already."""
        self.resolve(references)
        return [self.get(reference) for reference in references]

    def stored(self, reference: str) -> SourceTensor | None:
        """The constant of the file that a reference means, or None."""
        self.get(reference)
        return self.constants.get(self.place(reference)[0])

    def bind(self, name: str, value: Any) -> None:
        """Let an argument of a function be `value`."""
        self.values[name, 0] = value
        self.done.add(name)

    def resolve(self, references: Sequence[str]) -> None:
        """Translate what these depend on; operands first, without recursion. A refused node poisons its readers."""
        stack = [self.place(reference)[0] for reference in reversed(references)]
        open_: set[str] = set()
        while stack:
            name = stack[-1]
            if name in self.done:
                stack.pop()
                continue
            needed = self._attempt(name)
            if not needed:
                self.done.add(name)
                open_.discard(name)
                stack.pop()
                continue
            open_.add(name)
            loop = [n for n in needed if n in open_]
            if loop:
                raise ConversionError.of(BAD, f"'{loop[0]}' depends on itself")
            stack += needed

    def _attempt(self, name: str) -> list[str]:
        """Translate a node; the names of those that have to be translated before it can be."""
        node = self.source.nodes.get(name)
        if node is None:
            raise ConversionError.of(BAD, f"there is no node '{name}', which others read")
        rule = RULES.get(node.op)
        lazy = name in self.cuts or node.op in SOURCES or (rule is not None and rule.lazy)
        if not lazy:
            names = [self.place(i)[0] for i in node.operands]
            missing = [n for n in dict.fromkeys(reversed(names)) if n not in self.done]
            if missing or any(n in self.poisoned for n in names):
                self.poisoned.update([] if missing else [name])
                return missing
        before = len(self.builder.graph.nodes)
        try:
            self._translate(node, rule)
        except Pending as pending:
            self.builder.graph.remove(self.builder.graph.nodes[before:])
            return [pending.node]
        except MnnConvertError as error:
            self.importer.problems += [self._located(d, node) for d in error.diagnostics]
            self.poisoned.add(name)
        return []

    def _located(self, diagnostic: Diagnostic, node: SourceNode) -> Diagnostic:
        context = {"node": self.path(node.name), "op": node.op, **diagnostic.context}
        return Diagnostic(diagnostic.reference, diagnostic.message, context, diagnostic.hint)

    def _translate(self, node: SourceNode, rule: Rule | None) -> None:
        seen = TfNode(self, node)
        with self.builder.at(seen.name):
            before = len(self.builder.graph.nodes)
            results = self._results(seen, rule)
        self._bind(node, results if isinstance(results, tuple | list) else (results,), before)

    def _results(self, n: TfNode, rule: Rule | None) -> Any:
        node = n.source
        if node.name in self.cuts:
            return self.cuts[node.name](self, n)
        if node.op == "Const":
            return self._constant(node)
        if node.op == DEFAULTED:
            return n.input(0)
        if node.op in self.importer.model.functions:
            return tuple(self.call(node.op, [n.any_input(i) for i in range(n.input_count)], n.name))
        if node.op in SOURCES:
            raise n.refuse(f"'{node.name}' is a placeholder inside a function", reference=BAD)
        if rule is None:
            raise ConversionError([_unsupported(node.op, [n.name])])
        try:
            if rule.op in LINEAR and is_complex(n):
                return by_parts(rule.function, self.builder, n)
            return rule.function(self.builder, n)
        except (ValueError, IndexError, OverflowError, ZeroDivisionError) as error:
            raise n.refuse(
                f"the operands or attributes of {n.op} do not fit each other: {error}", reference=BAD
            ) from error

    def _constant(self, node: SourceNode) -> Any:
        tensor = node.attribute("value")
        if not isinstance(tensor, SourceTensor):
            raise ConversionError.of(BAD, f"the constant '{node.name}' has no value")
        self.constants[node.name] = tensor
        if tensor.type == "string":
            return Text(node.name)
        if tensor.type.startswith("complex"):
            parts = tensor.array().real, tensor.array().imag
            return Pair(*(self.builder.floats(p) for p in parts))
        return self.builder.constant(to_graph_type(ArrayTensor(tensor.array()), node.name), self.path(node.name))

    def _bind(self, node: SourceNode, results: Sequence[Any], before: int) -> None:
        """Bind results; what was made since the graph had `before` nodes is called like its node."""
        made = {v for n in self.builder.graph.nodes[before:] for v in n.outputs}
        for port, value in enumerate(results):
            self.values[node.name, port] = value
            if isinstance(value, Value) and value in made:
                made.discard(value)
                self.builder.names.discard(value.name)
                value.name = self.builder.unique(self.path(node.name) + (f":{port}" if port else ""))
                if value.producer is not None and value.producer.output is value:
                    value.producer.name = value.name

    def weight(self, b: Builder, value: Value, order: tuple[int, ...]) -> Value:
        """See `TfNode.weight`."""
        from mnnconvert.frontends.common.moves import permuted

        if value.tensor is None or order == tuple(range(len(order))):
            return permuted(b, value, order)
        key = (value, order)
        if key not in self.weights:
            tensor = value.tensor
            shape = tuple(tensor.shape[i] for i in order)
            moved = LazyTensor(tensor, lambda array: array.transpose(order), tensor.dtype, shape)
            self.weights[key] = b.constant(moved, f"{value.name}/{''.join(map(str, order))}")
        return self.weights[key]

    def enter(self, name: str, node: SourceNode, shape: Shape | None) -> None:
        """A graph input that stands for a placeholder."""
        kind = str(node.attribute("dtype", "float32"))
        value = self.builder.input(name, port_type(kind, name), shape)
        note_type(self.builder.graph, value.name, kind, value.dtype)
        with self.builder.at(value.name):
            self.bind(node.name, cast(self.builder, value, _inner_type(kind, name)))
        default = default_of(self.source, node) if node.op == DEFAULTED else None
        if default is not None:
            content = default.attribute("value").array()
            self.builder.graph.metadata[f"default/{name}"] = str(content.tolist())

    def leave(self, name: str, reference: str) -> None:
        """A result as a graph output, in the type of the source."""
        value = self.get(reference)
        node_name, port = self.place(reference)
        if not isinstance(value, Value):
            raise ConversionError.of("unsupported-type", f"the output '{name}' is no tensor of numbers")
        kind = self.type_of(self.source.nodes[node_name], port)
        with self.builder.at(f"{name}/port", node_name):
            value = cast(self.builder, value, port_type(kind, name)) if kind else value
        self.builder.output(value, name)
        note_type(self.builder.graph, name, kind or str(value.dtype), value.dtype)

    def type_of(self, node: SourceNode, port: int) -> str:
        """The source element type of a result; empty where nothing tells it."""
        for name in ("Tout", "output_types", "T"):
            kinds = node.attribute(name)
            if isinstance(kinds, list):
                return str(kinds[port]) if port < len(kinds) else ""
        rule = RULES.get(node.op)
        if rule is not None and rule.gives:
            kinds = rule.gives.split()
            kind = kinds[min(port, len(kinds) - 1)]
            return str(node.attribute(kind, kind))
        return next((str(node.attribute(name)) for name in GIVEN_TYPES if node.has(name)), "")

    def call(self, function: str, arguments: Sequence[Any], name: str) -> list[Any]:
        """The results of a function, translated in place."""
        return self.inner(self.builder, function, name).run(arguments)

    def inner(self, builder: Builder, function: str, name: str) -> Scope:
        """A scope for a function whose nodes go to `builder`."""
        importer = self.importer
        if function not in importer.model.functions:
            raise ConversionError.of(BAD, f"there is no function '{function}'")
        if function in self.calls:
            raise ConversionError.of("unsupported-op", f"the function '{function}' calls itself")
        importer.calls += 1
        if len(self.calls) > DEEPEST or importer.calls > MOST_CALLS:
            raise ConversionError.of(
                "too-large", f"functions call each other more than {DEEPEST} deep, or {MOST_CALLS} times"
            )
        scope = Scope(importer, builder, importer.model.functions[function], self)
        scope.calls, scope.prefix = (*self.calls, function), f"{name}/"
        return scope

    def within(self, builder: Builder, cuts: dict[str, Callable[[Scope, TfNode], Any]]) -> Scope:
        """A scope for a part of this graph whose nodes go to `builder`; some of its nodes mean something else there."""
        scope = Scope(self.importer, builder, self.source, self)
        scope.cuts = cuts
        return scope

    def run(self, arguments: Sequence[Any]) -> list[Any]:
        """The results of the function that this is a scope for."""
        if len(arguments) != len(self.source.arguments):
            raise ConversionError.of(
                BAD, f"'{self.source.name}' takes {len(self.source.arguments)} values, not {len(arguments)}"
            )
        for name, value in zip(self.source.arguments, arguments, strict=True):
            self.bind(name, value)
        return self.fetch(self.source.results)


class Text:
    """A constant of strings: it may be passed around, but nothing can be computed with it."""

    def __init__(self, name: str):
        self.name = name


def _inner_type(kind: str, name: str) -> Any:
    from mnnconvert.frontends.tensorflow.types import graph_type

    return graph_type(kind, name)


def _is_scalar(node: SourceNode) -> bool:
    """Whether a placeholder that declares no sizes has none, rather than that nothing is known."""
    return node.has("shape")


def _unsupported(op: str, nodes: Sequence[str]) -> Diagnostic:
    shown = ", ".join(nodes[:NODES_NAMED]) + (", ..." if len(nodes) > NODES_NAMED else "")
    context = {"op": op, "uses": str(len(nodes)), "nodes": shown}
    hint = "`mnnconvert ops --framework TF` lists what is supported"
    return Diagnostic("unsupported-op", f"there is no import rule for {op}", context, hint)
