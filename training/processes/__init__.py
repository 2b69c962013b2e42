"""Resources that the processes of a run share: their hosts, the memory of their GPUs, the clock of their phases."""
