"""Learning of a policy: the trainer, credit for turns, exact resumption."""
