"""What runs beside candidate code: the zygote, a gang's leader, the rank program.

These modules import nothing of pkb-gym but one another, always relatively: inside the sandbox this folder stands alone,
as a package of its own. Everything a process of this folder says is hearsay once a candidate has been loaded.
"""
