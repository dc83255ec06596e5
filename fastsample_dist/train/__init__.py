"""Models, the training step, gradients, metrics and checkpoints."""
