"""The frameworks whose models are read, by their names on the command line."""

from __future__ import annotations

FRONTENDS = ("ONNX", "TF", "TFLITE", "TORCH", "CAFFE", "MNN")

SUFFIXES = {
    ".onnx": "ONNX", ".mnn": "MNN", ".json": "JSON", ".tflite": "TFLITE",
    ".pb": "TF", ".keras": "TF", ".h5": "TF", ".hdf5": "TF", ".meta": "TF", ".index": "TF",
    ".pt": "TORCH", ".pt2": "TORCH", ".jit": "TORCH", ".pth": "TORCH",
    ".caffemodel": "CAFFE", ".prototxt": "CAFFE",
}  # fmt: skip

SOURCE_ENGINES = {
    "ONNX": ("onnxruntime", "onnxruntime", "verify"), "TFLITE": ("ai_edge_litert", "LiteRT", "litert"),
    "TF": ("tensorflow", "TensorFlow", "tf"), "TORCH": ("torch", "Torch", "torch"), "CAFFE": ("cv2", "OpenCV", "caffe"),
}  # fmt: skip
"""What runs the models of a framework: package, name, extra that installs it."""

TOLD = {"prototxt": "CAFFE", "signature": "TF"}
"""What tells models of one framework beside their files, by the names of options."""
