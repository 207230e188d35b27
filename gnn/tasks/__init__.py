"""Node-selection problems on graphs, each with its exact or estimated objective and its classical references.

`independent_set`: the largest set of nodes without an edge inside. `influence`: the seeds from which a cascade reaches
most nodes. `dismantling`: the order of removal that breaks a network up soonest.
"""

from manifoldnorm.gnn.tasks import dismantling, independent_set, influence

__all__ = ["dismantling", "independent_set", "influence"]
