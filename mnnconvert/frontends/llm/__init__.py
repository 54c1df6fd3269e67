"""Language models from Hugging Face folders and GGUF files: readers, families of architectures, and their graph."""
