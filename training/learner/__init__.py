"""How a policy learns: the trainer, credit for turns, exact resumption."""
