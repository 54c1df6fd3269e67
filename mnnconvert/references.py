"""The catalogue of diagnostic references: what each means and what to do. `mnnconvert explain` reads from here.

A reference is a stable name. It may get a better explanation, and does not change its meaning.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reference:
    """One named problem: `meaning` says what happened and why it matters, `remedy` what can be done."""

    name: str
    meaning: str
    remedy: str


_ENTRIES: tuple[tuple[str, str, str], ...] = (
    # the command line
    ("unknown-command", "The first word of the command line is neither a command nor an option.",
     "Check its spelling against mnnconvert --help. Files are given with --modelFile and --MNNModel."),
    ("unknown-option", "There is no option of this name. Nothing was done, as guessing could convert the wrong way.",
     "Use the suggested spelling, or look the option up in mnnconvert --help."),
    ("missing-option", "An option that this request cannot do without was not given.",
     "Add it; the hint shows a complete line."),
    ("missing-value", "An option that takes a value stands at the end or before another option.",
     "Give its value as --option VALUE or --option=VALUE; the second form also takes values that start with a dash."),
    ("missing-word", "A command was given fewer files than it needs.", "Give all files that its usage line names."),
    ("unexpected-word", "A word of the command line is not an option and not the value of one.",
     "Give files with --modelFile and --MNNModel, and put quotes around values with spaces."),
    ("repeated-option", "An option was given twice, and only one value can count.", "Keep the one you mean."),
    ("bad-option-value", "The value of an option is not of the kind it takes.",
     "Give what the message asks for; mnnconvert --help lists the values of each option."),
    ("out-of-range", "A number is of the right kind but outside what the option allows.",
     "Choose a value in the range that the message gives. No value is rounded to a legal one for you."),
    ("contradictory-options", "Two options cannot be meant together, or one needs another that was not given.",
     "Leave one of them out, or add the missing one. Neither is chosen silently."),
    ("budget-too-small", "Even with the fewest bits for every weight the file would be larger than --max-size.",
     "Ask for the size that the hint gives, or more. What is not a weight that can be quantized stays as it is."),
    ("nothing-to-compress", "The model has no weights that can be stored in fewer bits.",
     "Convert it without compression; its size is in something else than weights of layers."),
    ("option-without-effect", "The option is known from MNN, but would change nothing here.",
     "Leave it out. The message says why it has no effect."),
    ("unknown-layer", "No layer with weights has this name or matches this pattern.",
     "List the layers with mnnconvert show FILE."),
    ("unknown-reference", "This is no reference of a diagnostic.",
     "Copy the name in brackets from the message, or list all with mnnconvert explain."),
    # files
    ("missing-file", "A file or folder does not exist or may not be read.", "Check the path and its permissions."),
    ("missing-external-data", "The model keeps weights in a separate file that is not where the model says.",
     "Put the file beside the model, under the name in the message. It is searched relative to the model file."),
    ("unsafe-path", "The model refers to a file outside its own folder, which could be any file of this computer.",
     "Move the weights beside the model and export it again."),
    ("unreadable-file", "The file exists but is not what it should be.",
     "Check that it was downloaded or copied completely, and that -f names its real format."),
    ("truncated-file", "The file ends in the middle of its data.", "Copy or download it again."),
    ("file-too-large", "The model is too large for one file of this format.",
     "Add --saveExternalData to keep the weights in OUT.weight."),
    ("unwritable-output", "The output could not be written. No half-written file was left behind.",
     "Check the folder, its permissions and the free space."),
    ("out-of-memory", "This computer has not enough free memory for the model.",
     "Close other programs, or convert on a larger machine. The peak is about one copy of the largest weight."),
    ("bad-mnn-file", "The file is not a valid MNN model, or is damaged.",
     "Write it again from its source; mnnconvert --info FILE checks a model."),
    ("bad-json-model", "The JSON text is not the JSON form of an MNN model.",
     "Compare with what mnnconvert -f MNN --modelFile m.mnn --JsonFile m.json writes; the message names the place."),
    ("bad-onnx-file", "The file is not a valid ONNX model, or is damaged.",
     "Check it with onnx.checker, copy or export it again, and make sure that -f names its real format."),
    ("bad-onnx-node", "A node of the ONNX model breaks the rules of its operator: its operands or attributes are of "
     "the wrong number, type or size.",
     "Export the model again; onnx.checker says the same. The message names node, operator and what is wrong."),
    # what can be converted
    ("framework-not-available", "This source format is known, but models of it cannot be read yet.",
     "Export the model to ONNX and convert that."),
    ("unknown-framework", "Neither suffix nor content tell the format of the source.",
     "Say it with -f ONNX, TF, TFLITE, TORCH, CAFFE, MNN or JSON."),
    ("custom-op", "The model holds an op that comes from a plug-in; MNN runs the file only with a kernel of its name.",
     "Give --allowCustomOp when your runtime has that kernel."),
    ("broken-plugin", "A package declares ops for mnnconvert, and its module cannot be imported.",
     "Repair or uninstall the package that the message names."),
    ("unsupported-op", "The model uses an operator, or a form of one, that has no equal in MNN here.",
     "See mnnconvert ops for what is supported, and export with other operators or another opset."),
    ("unsupported-attribute", "An operator is supported, but not with this attribute or value.",
     "Export the model without it; the message names node and attribute."),
    ("unsupported-type", "A value has an element type that MNN cannot hold.",
     "Cast it in the source model to float32, int32, int8 or uint8."),
    ("unwritable-type", "A value has an element type that the MNN file format has no place for.",
     "Cast it in the source model to a type that MNN has."),
    ("unwritable-op", "An operator of the graph has no form in an MNN file.",
     "This is a gap of this program; please report the operator that the message names."),
    ("runtime-defect", "The target runtime computes this operator wrongly, and no equal form is known.",
     "Change the node that the message names. The file would give wrong numbers, so none was written."),
    ("too-large", "A node needs a table of so many numbers, or so many nodes, that no real model can mean it.",
     "Check the sizes in the model; the message names the node. The file may be damaged."),
    ("int64-range", "The model holds integers beyond 32 bits, and MNN computes with 32.",
     "Export the model with smaller integers. A value is never cut off silently."),
    ("value-out-of-range", "A number does not fit into the field of the file format that it belongs in.",
     "Change the attribute that the message names."),
    ("illegal-graph", "The graph breaks a rule that every graph must keep.",
     "If the source model passes onnx.checker, this is our bug: please report it."),
    ("shape-mismatch", "The sizes of the operands of an operator do not fit each other.",
     "Check the source model with its own framework; the message names the node and the sizes."),
    ("open-size", "A size is not known before the model runs, and this request needs it.",
     "Fix it with --input-shape NAME:SIZExSIZE or --batch N."),
    ("nested-too-deep", "The model nests subgraphs or tables deeper than any real model does.",
     "The file is probably damaged; export it again."),
    # weights
    ("bad-weight-coding", "Stored weights do not decode: their header, codes and scales contradict each other.",
     "Write the model again from its source."),
    ("weight-range", "A weight is outside what its storage form can hold.",
     "Choose more bits, or a larger type for this model."),
    ("half-overflow", "A weight is too large for half precision, whose largest number is 65504.",
     "Leave --fp16 out for this model, or scale the weight in the source."),
    ("non-finite-weight", "A weight is NaN or infinite, so no scale can represent it.",
     "Repair the source model; training probably diverged. The message names the weight."),
    ("bad-recipe", "A recipe file or a rule is no TOML, or names a key, value or mix that a recipe cannot have.",
     "Correct the place that the message names; docs/quantization.md lists all keys."),
    ("unmatched-rule", "A rule of the recipe fits no layer of the model, so it cannot be what was meant.",
     "Use a name from --plan, with * and ? for what differs, or take the rule out."),
    ("bad-compression-params", "A file for --compressionParamsFile does not parse, or asks for what is not supported.",
     "Correct or remove the layer that the message names; the file is made anew when it does not exist."),
    ("missing-data", "The chosen method of quantization needs inputs of the model.",
     "Give real inputs with --data PATH (.npz, .npy or a folder), or choose another --quantMethod."),
    ("block-does-not-fit", "The input channels of a layer cannot be cut into blocks of this size.",
     "Choose a block size that divides the channels, or leave --weightQuantBlock out for one scale per channel."),
    ("hqq-needs-asymmetric", "HQQ searches the offset of the codes, which symmetric weights do not have.",
     "Leave --weightQuantAsymmetric=0 out."),
    ("unknown-pass", "--disablePass names a pass that does not exist.", "Use a name that --dumpPass shows."),
    # running and proving
    ("bad-input", "Inputs do not fit the model: a wrong name, rank, size or type, or a file that holds no arrays.",
     "Give --input NAME=FILE.npy or a .npz file with one array per input; mnnconvert --info FILE lists the inputs."),
    ("unknown-input", "An option names an input that the model does not have, or gives it other sizes than the model.",
     "Use a name from the message; sizes that the model fixes cannot be changed."),
    ("bad-gate", "The file of accuracy gates names something that does not exist or is no TOML.",
     "Check metric and output names; the message names the line or key."),
    ("verification-missed", "The written file runs, but its outputs differ from the source by more than allowed.",
     "Raise the precision (more bits, smaller blocks, --hqq) or, if the difference is acceptable, --tolerance."),
    ("disputed-outputs",
     "Outputs differ by more than the tolerance, but no more than the source engine differs from itself when its float "
     "inputs and weights change by a millionth: values are rounded to codes at run time, and the last bit decides. "
     "Both sides agree where no rounding is in doubt, so the file computes what the source does.",
     "Nothing needs to be done. Judge such a model by its accuracy on real data, or bound it with --gates, which stay "
     "hard."),
    ("source-engine-failed", "The framework of the source could not run its own model.",
     "Check that the model runs there, or give inputs it accepts with --inputs FILE.npz."),
    ("source-engine-missing", "The framework that could prove the result is not installed.",
     "pip install 'mnnconvert[verify]', or use --verify never."),
    ("peer-runtime-failed", "The released MNN runtime failed or crashed on the model.",
     "Compare with our own executor (leave --engine out) and please report the model."),
    ("peer-runtime-missing", "The released MNN runtime is not installed.",
     "pip install 'mnnconvert[mnn]', or leave --engine out to use our own executor."),
    ("not-verified", "The file was written but not compared with its source.",
     "Install the source engine, or use --verify always to make this an error."),
    ("run-failed", "The model could not be run on these inputs.",
     "Check the inputs against mnnconvert --info FILE; the message names the operator."),
    ("unsupported-backend", "This backend does not exist or is not available on this computer.",
     "Use --backend cpu or --backend reference."),
    ("interrupted", "The program was stopped from outside before it was done.",
     "Run it again. What was there before is untouched, and no temporary file was left."),
    # ours
    ("internal-error", "Something happened that we did not foresee; the model may be fine.",
     "Send us the report file that the message names. It holds versions, arguments and a traceback, no model data."),
)  # fmt: skip

CATALOGUE: dict[str, Reference] = {name: Reference(name, meaning, remedy) for name, meaning, remedy in _ENTRIES}
