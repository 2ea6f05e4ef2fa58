"""Model families as pure functions of tensors, checkpoints and tokenizers."""
