"""Which warpgroup of a CTA has which queries, and which columns of V."""

from ....ir.expr import Expr, index, logical_and
from ....te.functions import equal
from ..gemm.mainloop import WarpRoles


class AttentionRoles(WarpRoles):
    """As ``WarpRoles``, where ``column_warpgroups`` consumer warpgroups share the columns of V for the same queries.

    ``row_warpgroup``: which 64 queries of its tile a warpgroup has. ``column_warpgroup``: which columns of V.
    ``weighs``: whether it computes scores and weights; the first one of those that share the columns does.
    ``follows``: whether it takes weights from another one.
    """

    def __init__(self, warp: Expr, lane: Expr, consumer_warpgroups: int, column_warpgroups: int = 1) -> None:
        super().__init__(warp, lane, consumer_warpgroups)
        self.row_warpgroup: Expr = self.warpgroup
        self.column_warpgroup: Expr = index(0)
        self.weighs: Expr = self.consumes
        if column_warpgroups > 1:
            self.row_warpgroup = self.warpgroup // column_warpgroups
            self.column_warpgroup = self.warpgroup % column_warpgroups
            self.weighs = logical_and(self.consumes, equal(self.column_warpgroup, 0))
            self.follows = logical_and(self.consumes, self.column_warpgroup > 0)
