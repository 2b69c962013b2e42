"""Who evaluates during training, and when."""
