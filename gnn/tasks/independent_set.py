"""Maximum independent set: a largest set of nodes no two of which are joined by an edge.

`decode` and `decode_adaptive` turn scores into a set, `greedy` is the classical reference, `local_search` the strong
one, `exact` proves an optimum or says how far it got. Every result is checked to be independent and maximal.
"""

from manifoldnorm.gnn.tasks.set_decoding import (
    IndependentSet,
    check_independent,
    decode,
    decode_adaptive,
    greedy,
    is_maximal,
)
from manifoldnorm.gnn.tasks.set_exact import exact
from manifoldnorm.gnn.tasks.set_search import local_search

__all__ = [
    "IndependentSet",
    "check_independent",
    "decode",
    "decode_adaptive",
    "exact",
    "greedy",
    "is_maximal",
    "local_search",
]
