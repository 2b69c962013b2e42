"""Code that runs beside candidate code: the zygote, a gang's leader, the rank program.

These modules import nothing of pkb-gym but one another, always relatively: inside the sandbox this folder stands alone,
as a package of its own. Whatever a process of this folder sends is an untrusted rank report once a candidate has been
loaded.
"""
