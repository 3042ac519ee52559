"""Operators with an effect beside their result, such as the checks behind ``torch.linalg``, as plain calls.

AOTAutograd keeps them in order by tokens, which it has each of them take and give: ``with_effects(token, operator, …)``
gives (token, results …). In a call of the graph tokens are None. Calls run in the order of the graph here, so that no
token is needed.
"""

import operator
from typing import Any


def without_tokens(traced: Any) -> None:
    """Have a traced graph call such operators themselves. It gives the tokens that it takes."""
    for node in list(traced.graph.nodes):
        if node.op != "call_function" or str(node.target) != "with_effects":
            continue
        token, function, *arguments = node.args
        _, *results = node.meta["val"]
        token.meta["val"] = None
        with traced.graph.inserting_before(node):
            call = traced.graph.call_function(function, tuple(arguments), dict(node.kwargs))
            call.meta["val"] = results[0] if len(results) == 1 else tuple(results)
            for user in list(node.users):
                place = user.args[1] - 1
                found = token if place < 0 else call
                if place >= 0 and len(results) > 1:
                    found = traced.graph.call_function(operator.getitem, (call, place))
                    found.meta["val"] = results[place]
                user.replace_all_uses_with(found)
                traced.graph.erase_node(user)
        traced.graph.erase_node(node)
    traced.recompile()
