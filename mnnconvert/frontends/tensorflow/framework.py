"""TensorFlow itself: opens what only it can read (SavedModels, Keras files), freezes it, and runs it.

Nothing here is imported before such a model is opened or a model is run; `model.py` reads frozen graphs without it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mnnconvert.errors import ConversionError, UsageError, unreadable
from mnnconvert.frontends.tensorflow.model import SourceModel, load_frozen, parse, read_node

KERAS = (".keras", ".h5", ".hdf5")
HINT = "pip install 'mnnconvert[tf]'"
DEFAULT_SIGNATURE = "serving_default"
INTERNAL = "__saved_model"  # how the names of signatures begin that are not for users
NO_NUMBERS = ("string", "resource", "variant")
FIRST_MESSAGE = 400  # characters that are shown of what TensorFlow says
Shape = tuple[int | None, ...] | None


@dataclass(frozen=True)
class Port:
    """An input or output: its name, numpy type and sizes (None where open, or as a whole where the rank is)."""

    name: str
    dtype: np.dtype
    shape: Shape


class Opened(Protocol):
    """A model that TensorFlow has loaded."""

    @property
    def inputs(self) -> Sequence[Port]: ...

    @property
    def outputs(self) -> Sequence[Port]: ...

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]: ...

    def freeze(self) -> SourceModel: ...

    def flat(self) -> SourceModel:
        """As `freeze`, with the functions that nodes call in the place of these nodes, as CALL/NODE."""
        ...

    def values(self, feeds: Mapping[str, np.ndarray], names: Sequence[str]) -> dict[str, np.ndarray]:
        """The results of nodes of `flat` by `name` or `name:port`; those that cannot be had are left out."""
        ...


def require_tensorflow(what: str) -> Any:
    """The package; refused with the extra to install where it is not there."""
    if find_spec("tensorflow") is None:
        raise ConversionError.of("missing-extra", f"{what} needs TensorFlow, which is not installed", hint=HINT)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # whose kernels round differently
    with nullcontext() if "tensorflow" in sys.modules else _without_native_messages():
        import tensorflow

        tensorflow.config.list_physical_devices()  # what there is to say about them is said now
    return tensorflow


@contextmanager
def _without_native_messages() -> Iterator[None]:
    """Nothing that native code writes to stderr is shown: while it starts TensorFlow tells of drivers not there."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextmanager
def _without_advice(tf: Any) -> Iterator[None]:
    """No warnings that a function is old: there is no other one for this."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("ERROR")
    try:
        yield
    finally:
        logger.setLevel(level)


def is_saved_model(path: Path) -> bool:
    return (path / "saved_model.pb").is_file() or (path / "saved_model.pbtxt").is_file()


def source_folder(path: Path) -> Path:
    """The folder of a SavedModel where one of its files is named."""
    return path.parent if path.name in ("saved_model.pb", "saved_model.pbtxt") else path


def load(path: Path, signature: str = "") -> SourceModel:
    """The frozen model of a GraphDef file, a SavedModel folder or a Keras file."""
    path = source_folder(path)
    if path.is_dir() or path.suffix.lower() in KERAS:
        return open_model(path, signature).freeze()
    if signature:
        raise UsageError.of("option-without-effect", f"'{path}' is a frozen graph, which has no signatures")
    return load_frozen(path)


def open_model(path: Path, signature: str = "", threads: int = 1) -> Opened:
    """A model loaded by TensorFlow. The last one is kept, so that it is not read twice to be converted and proved."""
    path = source_folder(path)
    try:
        path.stat()
    except OSError as error:
        raise unreadable(path, error) from error
    told = path / "saved_model.pb" if path.is_dir() else path
    return _opened(path.absolute(), signature, threads, told.stat().st_mtime_ns if told.is_file() else 0)


@lru_cache(maxsize=1)
def _opened(path: Path, signature: str, threads: int, changed: int) -> Opened:
    if path.suffix.lower() in KERAS:
        if signature:
            raise UsageError.of("option-without-effect", f"'{path}' is a Keras model, which has no signatures")
        return KerasModel(path)
    if path.is_dir():
        if not is_saved_model(path):
            raise ConversionError.of(
                "bad-tensorflow-file", f"the folder '{path}' holds no SavedModel (saved_model.pb)", file=path,
                hint="a checkpoint has to be loaded by its network and saved with tf.saved_model.save, or frozen",
            )  # fmt: skip
        return SavedModel(path, signature, threads)
    return FrozenGraph(path, threads)


def _failed(path: Path, what: str, problem: BaseException) -> ConversionError:
    text = " ".join(str(problem).split())[:FIRST_MESSAGE]
    return ConversionError.of("bad-tensorflow-file", f"TensorFlow cannot {what} '{path}': {text}", file=path)


def _errors(tf: Any) -> tuple[type[Exception], ...]:
    """What TensorFlow and Keras raise on files that they do not like."""
    return (
        tf.errors.OpError, ValueError, TypeError, KeyError, AttributeError, OSError, RuntimeError, IndexError,
        NotImplementedError, ImportError,
    )  # fmt: skip


def _port(name: str, tensor: Any) -> Port:
    if tensor.dtype.name in NO_NUMBERS:
        raise ConversionError.of("unsupported-type", f"'{name}' is a tensor of {tensor.dtype.name}, not of numbers")
    shape = None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
    return Port(name, np.dtype(tensor.dtype.base_dtype.as_numpy_dtype), shape)


class _Graph:
    """A graph in a session, with the tensors that are fed and fetched."""

    def __init__(self, path: Path, session: Any, inputs: Mapping[str, Any], outputs: Mapping[str, Any]):
        self.path = path
        self.session = session
        self.fed, self.fetched = dict(inputs), dict(outputs)
        self.inputs = [_port(name, tensor) for name, tensor in inputs.items()]
        self.outputs = [_port(name, tensor) for name, tensor in outputs.items()]

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return self._fetch(self.fetched, feeds)

    def _fetch(self, wanted: Mapping[str, Any], feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        results = self.session.run(dict(wanted), {tensor: feeds[name] for name, tensor in self.fed.items()})
        return {name: np.asarray(array) for name, array in results.items()}

    def freeze(self) -> SourceModel:
        """Variables become constants; functions stay."""
        return _parsed(self._definition(), self.path, self.fed, self.fetched)

    def _definition(self) -> Any:
        """The GraphDef without variables."""
        return self.session.graph.as_graph_def()

    def flat(self) -> SourceModel:
        """See `Opened`."""
        return self._flat[0]

    @cached_property
    def _flat(self) -> tuple[SourceModel, _Graph]:
        source = self.freeze()
        if not source.functions:
            return source, self
        tf = require_tensorflow("running the source model")
        called = _inlined(tf, self._definition(), self.fed, self.fetched)
        definition = called.graph.as_graph_def()
        fed, fetched = (
            dict(zip(self.fed, called.inputs, strict=True)),
            dict(zip(self.fetched, called.outputs, strict=True)),
        )
        source = _parsed(definition, self.path, fed, fetched)
        return source, _Graph(self.path, *_imported(tf, self.path, definition, source, 1))

    def values(self, feeds: Mapping[str, np.ndarray], names: Sequence[str]) -> dict[str, np.ndarray]:
        """See `Opened`."""
        return self._flat[1].own_values(feeds, names)

    def own_values(self, feeds: Mapping[str, np.ndarray], names: Sequence[str]) -> dict[str, np.ndarray]:
        """Results of nodes of this graph: none from inside of loops, or of a branch that was not taken."""
        tf = require_tensorflow("running the source model")
        graph, wanted = self.session.graph, {}
        for name in names:
            try:
                tensor = graph.get_tensor_by_name(name if ":" in name else f"{name}:0")
            except (KeyError, ValueError):
                continue
            if graph.is_fetchable(tensor.op) and tensor.dtype.name not in NO_NUMBERS:
                wanted[name] = tensor
        try:
            return self._fetch(wanted, feeds)
        except tf.errors.OpError:
            return self._one_by_one(tf, wanted, feeds)

    def _one_by_one(self, tf: Any, wanted: Mapping[str, Any], feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for name, tensor in wanted.items():
            with suppress(tf.errors.OpError):
                found |= self._fetch({name: tensor}, feeds)
        return found


def _inlined(tf: Any, definition: Any, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Any:
    """A frozen graph as a function of these tensors, in which TensorFlow has put functions in the place of calls."""
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    wrapped = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(definition, name=""), [])
    ports = [[wrapped.graph.get_tensor_by_name(t.name) for t in group.values()] for group in (inputs, outputs)]
    return convert_variables_to_constants_v2(wrapped.prune(*ports), lower_control_flow=False)


def _session(tf: Any, graph: Any, threads: int) -> Any:
    """A session that computes what the graph says: nothing is rewritten."""
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=1)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return tf.compat.v1.Session(graph=graph, config=config)


class FrozenGraph(_Graph):
    """A frozen GraphDef."""

    def __init__(self, path: Path, threads: int):
        tf = require_tensorflow("running the source model")
        source = load_frozen(path)
        definition = tf.compat.v1.GraphDef()
        definition.ParseFromString(path.read_bytes())
        super().__init__(path, *_imported(tf, path, definition, source, threads))

    def freeze(self) -> SourceModel:
        return load_frozen(self.path)


def _imported(tf: Any, path: Path, definition: Any, source: SourceModel, threads: int) -> tuple[Any, Any, Any]:
    """A session of a frozen graph, and its inputs and outputs."""
    graph = tf.Graph()
    try:
        with graph.as_default():
            tf.import_graph_def(definition, name="")
    except _errors(tf) as problem:
        raise _failed(path, "open", problem) from problem
    inputs, outputs = (
        {name: graph.get_tensor_by_name(ref if ":" in ref else f"{ref}:0") for name, ref in group}
        for group in (source.inputs, source.outputs)
    )
    return _session(tf, graph, threads), inputs, outputs


class SavedModel(_Graph):
    """A SavedModel, by one of its signatures, loaded with its variables into a session."""

    def __init__(self, path: Path, signature: str, threads: int):
        tf = require_tensorflow("reading a SavedModel")
        graph = tf.Graph()
        session = _session(tf, graph, threads)
        try:
            with graph.as_default(), _without_advice(tf):
                meta = tf.compat.v1.saved_model.loader.load(session, ["serve"], str(path))
        except _errors(tf) as problem:
            raise _failed(path, "open", problem) from problem
        self.key = _chosen(path, dict(meta.signature_def), signature)
        found = meta.signature_def[self.key]
        ports = [_tensors(path, graph, group) for group in (found.inputs, found.outputs)]
        super().__init__(path, session, *ports)

    def _definition(self) -> Any:
        tf = require_tensorflow("reading a SavedModel")
        from tensorflow.python.framework.convert_to_constants import (  # no public name does this to a session
            convert_variables_to_constants_from_session_graph as frozen,
        )

        names = [tensor.op.name for tensor in self.fetched.values()]
        try:
            with self.session.graph.as_default(), _without_advice(tf):
                return frozen(self.session, self.session.graph.as_graph_def(), list(dict.fromkeys(names)))
        except _errors(tf) as problem:
            raise _failed(self.path, "freeze", problem) from problem


def _parsed(definition: Any, path: Path, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> SourceModel:
    """A GraphDef as records; inputs that freezing left out, as nothing depends on them, are put back."""
    graph, functions = parse(memoryview(definition.SerializeToString()), path.stem)
    for tensor in inputs.values():
        if tensor.op.name not in graph.nodes:
            graph.nodes[tensor.op.name] = read_node(memoryview(tensor.op.node_def.SerializeToString()))
    fed = tuple((name, tensor.op.name) for name, tensor in inputs.items())
    return SourceModel(graph, functions, fed, tuple((name, tensor.name) for name, tensor in outputs.items()))


def _chosen(path: Path, signatures: Mapping[str, Any], wanted: str) -> str:
    """The signature to convert: the one that was asked for, the default one, or the only one."""
    usable = {key: s for key, s in signatures.items() if not key.startswith(INTERNAL) and s.outputs}
    listed = ", ".join(sorted(usable)) or "none"
    if wanted:
        if wanted not in usable:
            raise UsageError.of("unknown-signature", f"'{path}' has no signature '{wanted}'", hint=f"it has: {listed}")
        return wanted
    if DEFAULT_SIGNATURE in usable:
        return DEFAULT_SIGNATURE
    if len(usable) != 1:
        raise UsageError.of(
            "unknown-signature", f"'{path}' does not say which of its signatures to convert",
            hint=f"choose with --signature one of: {listed}",
        )  # fmt: skip
    return next(iter(usable))


def _tensors(path: Path, graph: Any, group: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors of a signature by name; those without a dense tensor are refused."""
    sparse = [name for name, info in group.items() if not info.name]
    if sparse:
        raise ConversionError.of("unsupported-type", f"'{sparse[0]}' is a sparse tensor", file=path)
    return {name: graph.get_tensor_by_name(group[name].name) for name in sorted(group)}


class KerasModel:
    """A Keras file (`.keras`, or HDF5 with the architecture in it), called as it is for inference."""

    def __init__(self, path: Path):
        self.path = path
        tf = require_tensorflow("reading a Keras file")
        model = _load_keras(tf, path)
        inputs = getattr(model, "inputs", None)
        if not inputs:
            raise ConversionError.of(
                "open-size", f"the Keras model '{path}' does not know its inputs", file=path,
                hint="call it once, or give it an Input layer, and save it again",
            )  # fmt: skip
        names = _unique([t.name.partition(":")[0] for t in inputs])
        specs = [tf.TensorSpec(t.shape, t.dtype, name) for t, name in zip(inputs, names, strict=True)]
        structure = getattr(model, "input", inputs[0])  # a Sequential that was read from a file has no `input`

        def call(*tensors: Any) -> Any:
            packed = tf.nest.pack_sequence_as(structure, list(tensors))
            return tf.nest.flatten(model(packed, training=False))

        try:
            self.function = tf.function(call, autograph=False).get_concrete_function(*specs)
        except _errors(tf) as problem:
            raise _failed(path, "trace", problem) from problem
        results = self.function.outputs
        given = list(getattr(model, "output_names", None) or ())
        names_out = _unique(given if len(given) == len(results) else [f"output_{i}" for i in range(len(results))])
        self.inputs = [_port(name, spec) for name, spec in zip(names, specs, strict=True)]
        self.outputs = [_port(name, tensor) for name, tensor in zip(names_out, results, strict=True)]
        self._tensorflow = tf

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        tensors = [self._tensorflow.constant(feeds[port.name], port.dtype) for port in self.inputs]
        results = self.function(*tensors)
        return {port.name: np.asarray(array) for port, array in zip(self.outputs, results, strict=True)}

    def freeze(self) -> SourceModel:
        frozen = self._frozen
        fed = dict(zip([p.name for p in self.inputs], frozen.inputs, strict=True))
        fetched = dict(zip([p.name for p in self.outputs], frozen.outputs, strict=True))
        return _parsed(frozen.graph.as_graph_def(), self.path, fed, fetched)

    def values(self, feeds: Mapping[str, np.ndarray], names: Sequence[str]) -> dict[str, np.ndarray]:
        """See `Opened`."""
        return self._graph.own_values(feeds, names)

    def flat(self) -> SourceModel:
        """See `Opened`: Keras' own freezing leaves no calls."""
        return self.freeze()

    @cached_property
    def _frozen(self) -> Any:
        from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

        try:
            return convert_variables_to_constants_v2(self.function, lower_control_flow=False)
        except _errors(self._tensorflow) as problem:
            raise _failed(self.path, "freeze", problem) from problem

    @cached_property
    def _graph(self) -> _Graph:
        """The frozen form in a session, which tells the values inside."""
        definition = self._frozen.graph.as_graph_def()
        return _Graph(self.path, *_imported(self._tensorflow, self.path, definition, self.freeze(), 1))


def _unique(names: Sequence[str]) -> list[str]:
    """The names, with a number behind those that came before."""
    made: list[str] = []
    for name in names:
        count, candidate = 0, name
        while candidate in made:
            count += 1
            candidate = f"{name}_{count}"
        made.append(candidate)
    return made


def _require_architecture(path: Path) -> None:
    """Refuse HDF5 files of weights alone."""
    import h5py  # comes with TensorFlow

    try:
        with h5py.File(path, "r") as file:
            whole = path.suffix.lower() == ".keras" or "model_config" in file.attrs
    except OSError:
        return  # a .keras archive; or Keras will say what is wrong
    if not whole:
        raise ConversionError.of(
            "weights-without-network", f"'{path.name}' holds weights by name, and no network that uses them", file=path,
            hint="build the model in Python, load the weights into it, and save it whole: model.save('m.keras')",
        )  # fmt: skip


def _load_keras(tf: Any, path: Path) -> Any:
    """By Keras, and old HDF5 files that it does not read by its former version where that is installed."""
    _require_architecture(path)
    try:
        return tf.keras.models.load_model(str(path), compile=False)
    except _errors(tf) as problem:
        if path.suffix.lower() == ".keras" or find_spec("tf_keras") is None:
            raise _failed(path, "open", problem) from problem
    import tf_keras

    try:
        return tf_keras.models.load_model(str(path), compile=False)
    except _errors(tf) as problem:
        raise _failed(path, "open", problem) from problem
