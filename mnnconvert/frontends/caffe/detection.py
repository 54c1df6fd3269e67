"""Import rules of detectors."""
