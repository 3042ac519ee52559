"""Images seen through windows, as the right operands of products: convolutions whose outputs lie along the width."""

from dataclasses import dataclass, replace

from ...ir.expr import Expr, Var, walk
from ...ir.rewrite import loads_of, substitute
from ...te.workload import Workload
from .digits import places
from .product import Product, flat_steps, goes_along, sides_of

ROW, PIXEL = "image_row", "image_pixel"
"""What the axes of an image are called."""


@dataclass(frozen=True, slots=True)
class Image:
    """The columns ``n`` of a product as ``rows`` of ``pixels``. ``body``: the right operand on ``ROW``, ``PIXEL``,
    ``k`` and the batch; it reads neighbours for neighbouring pixels of a row."""

    body: Expr
    rows: int
    pixels: int


def image_product_of(workload: Workload) -> tuple[Product, Image] | None:
    """``workload`` as a product with such a right operand; None where it is none. The rest of the product is as in
    ``matrix_product_of``."""
    found = sides_of(workload, joined=True)
    for sides in () if found is None else found.alternatives():
        for short, tall in ((sides.rows, sides.columns), (sides.columns, sides.rows)):
            product = sides.product(short, tall)
            if product is None or len(tall.axes) < 2 or product.results[0].step("n") != 1:
                continue
            *rows, pixel = tall.axes
            at = {**sides.shared_places, **places(Var(ROW), rows), pixel.name: Var(PIXEL)}
            image = Image(substitute(tall.body, at), tall.extent // pixel.extent, pixel.extent)
            if goes_along(replace(product, weights=product.tokens)) and _reads_neighbours(image):
                return product, image
    return None


def _reads_neighbours(image: Image) -> bool:
    for load in loads_of(image.body):
        form = flat_steps(load)
        apart = [t for t in form.terms if t != Var(PIXEL) and Var(PIXEL) in walk(t)]
        if form.terms.get(Var(PIXEL)) != 1 or apart:
            return False
    return True
