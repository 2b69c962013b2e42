"""The programs beside candidate code: the zygote, a gang's leader, the rank programs of candidates.

Runs in the processes of candidates' gangs; reference gangs are forked by the same zygote program. Imports `wire` and
itself, nothing else of pkb_gym, of which the sandbox shows these two rooms alone; emulated ranks import rank_emulator
too. Whatever a process of this room sends is an untrusted rank report once a candidate has been loaded.
"""
