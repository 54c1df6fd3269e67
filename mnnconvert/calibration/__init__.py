"""Full integer quantization from samples: configuration, samples, and the work from a float file to an int8 file."""
