"""Special functions of one element: those of the error function, the gamma function and Bessel functions.

Each is a few polynomials, so that a kernel of any target computes it. Their coefficients are those of truncated
Chebyshev series, computed with 40 digits: what is left out is below a rounding of the dtype.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ...core.dtypes import DTYPES, float64
from ...ir.expr import Expr
from ...te import build as te
from .operator import Array
from .pointwise import pointwise

_Series = Mapping[int, Sequence[float]]
"""The coefficients of a polynomial for results of so many bits, the lowest power first."""

_ERFCX: _Series = {
    32: (0.6265040291, -0.0678105347, -0.02378114635, 0.06482205717, -0.05963684566, 0.03415828389,
         -0.01188516734, 0.001249558435, 0.0009440564323, -0.0003632268395, -5.206535714e-05, 3.865512112e-05,
         1.930924568e-06),
    64: (0.6265040291348648, -0.06781055306229058, -0.0237811471767246, 0.0648225793513797, -0.05963683170769319,
         0.03415401367200495, -0.01188525745858567, 0.0012646959078469848, 0.0009443451724995859,
         -0.0003899161348271653, -5.2579859792240326e-05, 6.254967122918645e-05, 2.4745983249841725e-06,
         -1.0050271134262806e-05, -3.654140734391807e-07, 1.736185472488584e-06, 1.77880433420403e-07,
         -3.083005730199363e-07, -7.023827157714234e-08, 5.091810301921368e-08, 2.0532006833970194e-08,
         -6.656459830519343e-09, -4.108797529355733e-09, 4.931266755172792e-10, 4.1968674293454495e-10),
}  # fmt: skip
"""(x + 1/2) erfcx(x) for x of 0 and more, in (x - 3) / (x + 3)."""
_ERF: _Series = {
    32: (1.128379166, -0.3761260917, 0.1128283474, -0.02675794433, 0.004719505354),
    64: (1.1283791670955126, -0.37612638903183476, 0.11283791670925457, -0.026866170632921085,
         0.005223977373542183, -0.0008548297798086192, 0.00012053337222877719, -1.4845900896375835e-05,
         1.4726381680017032e-06),
}  # fmt: skip
"""erf(x) / x in x², for |x| up to 0.5."""
_ERFINV_NEAR: _Series = {
    32: (1.653654563, 0.7504943082, -0.05892257409, -0.02260410782, 0.01780846922, -0.00414011734,
         -0.001272298167, 0.001242545966, -0.0002628400038, -0.0001349372243, 9.1566128e-05, 1.526579082e-06,
         -1.074130286e-05),
    64: (1.6536545626831027, 0.7504943200799635, -0.05892256710377839, -0.022604447453450232,
         0.017808361818321756, -0.004137314377403391, -0.001271692268923054, 0.001232485568550093,
         -0.00026439366376450275, -0.00011688883906368398, 9.336736525855553e-05, -1.5027713926607673e-05,
         -1.12572237422896e-05, 7.1300663740767115e-06, -6.839448584111029e-07, -1.059336931327948e-06,
         5.397895417173957e-07, -1.0167881522843899e-08, -9.905042307855316e-08, 3.9142671001331085e-08,
         5.039596477958063e-09, -8.557984074479201e-09, 1.4461050507676025e-09, 7.680990475576525e-10,
         -2.546615799889267e-10),
}  # fmt: skip
"""erfinv(x) / x by w = -log(1 - x²), for w up to 6.25, in 0.32 w - 1."""
_ERFINV_FAR: _Series = {
    32: (3.209620136, 0.8806380201, 0.003191190524, -0.001832683927, 0.0009589622081, -0.0005541963684,
         0.0002973941629, -0.0001249032102, 2.436423078e-05, 1.279156734e-05, -7.653043693e-06),
    64: (4.218480707652916, 1.8939929107274542, 0.0017701087787849264, -0.003369006873056742,
         0.0021809396961484802, -0.0011757192237023815, 0.0006578820045537472, -0.00047958810916244826,
         0.0004717929608807023, -0.0005007442577351315, 0.0004758046210657905, -0.00036399658504143923,
         0.00019379874882874672, -2.988873207493567e-05, -7.096650766060966e-05, 9.29282328770426e-05,
         -6.195440071522768e-05, 1.907273629032085e-05, 8.771812237446614e-06, -1.6435110218756882e-05,
         1.0438615629852967e-05, -1.1629325320202964e-06, -2.4459611064550364e-06, 7.091815220110184e-07,
         2.0838465345081794e-07, 5.855701395428806e-07, -4.332018900063447e-07, -2.2458983857367614e-07,
         1.9334069128550866e-07, 1.83542185827782e-08, -2.4345086813945936e-08),
}  # fmt: skip
"""The same for larger w, in the square root of w, from 2.5 to ``_ERFINV_LAST``, moved to -1 to 1."""
_LGAMMA_1: _Series = {
    32: (-0.5772156647, 0.8224670344, -0.4006857209, 0.2705807528, -0.20737958, 0.1695534892, -0.1441993863,
         0.1257305707, -0.1097396153, 0.09641662452, -0.09691855454, 0.1069225815, -0.08581526432, 0.03094242817),
    64: (-0.5772156649015329, 0.8224670334241132, -0.4006856343865311, 0.2705808084277644, -0.20738555102873624,
         0.1695571770005688, -0.1440498967656629, 0.12550966929532636, -0.11133426580294865, 0.10009946669716568,
         -0.0909540288459764, 0.08335362174146221, -0.07693204587209691, 0.0714360879148639, -0.06667855451097994,
         0.06247579792312294, -0.058702916728460904, 0.05562229517395859, -0.05350762833329347, 0.050611858920226675,
         -0.04429386822959932, 0.03934216010286601, -0.046662086983028324, 0.06063900091056324, -0.05666885895023079,
         0.03032838872421801, -0.006960230240186093),
}  # fmt: skip
"""lgamma(1 + t) / t for t from -0.375 to 0.625."""
_LGAMMA_2: _Series = {
    32: (0.422784335, 0.3224670297, -0.0673522778, 0.02058099423, -0.007386219598, 0.002888081657,
         -0.001185732635, 0.0005204605618, -0.0002537885147, 8.960013285e-05),
    64: (0.42278433509846713, 0.3224670334241132, -0.0673523010531967, 0.02058080842779077, -0.007385551028809669,
         0.0028905103304447495, -0.0011927539065930079, 0.0005096695302559291, -0.00022315485558362455,
         9.945747685025715e-05, -4.49251964771497e-05, 2.050706211007645e-05, -9.446001574375347e-06,
         4.378455547957493e-06, -2.015967739763127e-06, 9.34110709806536e-07, -4.906812783366798e-07,
         2.6572831851613235e-07, -8.147867075342857e-08),
}  # fmt: skip
"""lgamma(2 + t) / t for t from -0.5 to 0.625."""
_STIRLING: _Series = {
    32: (0.08333333329, -0.002777719001, 0.000781906347),
    64: (0.08333333333333331, -0.0027777777776955364, 0.0007936507217510198, -0.0005952150209996227,
         0.0008383784531199748, -0.0016860368064592903),
}  # fmt: skip
"""What (x - 1/2) log(x) - x + log(2π) / 2 lacks of lgamma(x), times x, in 1 / x², for x from 8.625 on."""
_SINE: _Series = {
    32: (1.0, -1.644934062, 0.8117421958, -0.1907478989, 0.02611745406, -0.002237204878),
    64: (1.0, -1.6449340668482264, 0.8117424252833394, -0.19075182412149658, 0.026147847805557536,
         -0.0023460808955200734, 0.0001484278416841416, -6.972100313670779e-06, 2.4503008901533465e-07),
}  # fmt: skip
"""sin(πr) / (πr) in r², for |r| up to 0.5."""
_DIGAMMA: _Series = {
    32: (-0.08333333229, 0.00833240997, -0.003845913728),
    64: (-0.08333333333333329, 0.008333333333091475, -0.0039682537762491515, 0.004166609207108867,
         -0.007567493090500059, 0.02047106108645189, -0.059031128361876864),
}  # fmt: skip
"""What log(x) - 1 / (2x) lacks of digamma(x), times x², in 1 / x², for x from 7 on."""
_I0E_NEAR: _Series = {
    32: (0.2070019211, -0.1130043265, 0.0945156472, -0.089043467, 0.08734280515, -0.08496283115, 0.07928297277,
         -0.06954659125, 0.0567272883, -0.04295691574, 0.03036063714, -0.01977620607, 0.0115540656, -0.006604619497,
         0.004169273658, -0.00204734508, 0.0004126514604, -0.0002057593459, 0.0003486284152, -0.0001360473778),
    64: (0.2070019212239867, -0.11300432688620549, 0.09451562853995103, -0.08904344136075962, 0.08734341617552313,
         -0.08496338091616305, 0.07927522590716347, -0.06954119561719381, 0.05677703201991695, -0.04298594945479612,
         0.030177912022978357, -0.01968265469059234, 0.011960077907026221, -0.0067923998730731695,
         0.003617126448897043, -0.001811886793937724, 0.0008563152748272306, -0.00038290209550065975,
         0.00016240542162878106, -6.550861389620851e-05, 2.520232727107692e-05, -9.251680584432654e-06,
         3.2293390826404927e-06, -1.0883393970072518e-06, 3.675842926555429e-07, -1.1384114641747256e-07,
         2.6265363151970112e-08, -7.723094556846333e-09, 4.470516727511741e-09, -1.1852342482684723e-09),
}  # fmt: skip
"""i0e(x) for x from 0 to 8, in x / 4 - 1."""
_I0E_FAR: _Series = {
    32: (0.4021765094, 0.0033605557, 0.0001362171642, 1.111214829e-05, 1.476115734e-06, 3.626670385e-07,
         1.086794248e-07),
    64: (0.4021765094450081, 0.0033605519836678614, 0.0001362160743919305, 1.1143033790932038e-05,
         1.4838475658279255e-06, 2.97359858856739e-07, 8.872219737902818e-08, 3.932584334553235e-08,
         2.1548377974907268e-08, 7.554691881228112e-09, -6.747657956748446e-09, -1.340891753999946e-08,
         -5.4047715653220785e-09, 7.552583061874436e-09, 7.430464645076303e-09, -3.5059665304342823e-09,
         -5.953569430107022e-09, 1.5200816948778085e-09, 3.637954627511732e-09, -5.715843860488499e-10,
         -1.618980678144864e-09, 1.52792026797705e-10, 4.577087611053582e-10, -2.0260604260424477e-11,
         -6.0676315367147e-11),
}  # fmt: skip
"""i0e(x) sqrt(x) for x from 8 on, in 16 / x - 1."""
_I1E_NEAR: _Series = {
    32: (0.04468770986, -0.06112433799, 0.06805760218, -0.06848260916, 0.06376732927, -0.0552799758, 0.0446755173,
         -0.03367197857, 0.02367994377, -0.01556795295, 0.009606306452, -0.005545398144, 0.002956003967,
         -0.001517091516, 0.0008124034742, -0.0003685720046, 9.356820086e-05, -4.071009185e-05, 4.752133694e-05,
         -1.74679385e-05),
    64: (0.044687709875608835, -0.06112433802966629, 0.0680575999095116, -0.06848260620582547,
         0.06376740371340721, -0.055280039227051464, 0.04467457262125467, -0.03367135551992323, 0.023686016957729535,
         -0.015571309256763564, 0.009583962150731578, -0.00553456775924123, 0.0030057624197775295,
         -0.0015388749696724586, 0.0007445123445061157, -0.00034117472445271377, 0.0001484212433475852,
         -6.142655719704761e-05, 2.4233753149624307e-05, -9.131775730568571e-06, 3.293899139003749e-06,
         -1.1381566323785447e-06, 3.759367306404118e-07, -1.1993980285486188e-07, 3.802984785138283e-08,
         -1.1224475126135595e-08, 2.603206542331157e-09, -7.277033556073836e-10, 3.7284532079392345e-10,
         -9.506861180736366e-11),
}  # fmt: skip
"""i1e(x) / x for x from 0 to 8, in x / 4 - 1."""
_I1E_FAR: _Series = {
    32: (0.3893984591, -0.00974958137, -0.0002192371254, -1.500396547e-05, -1.825690732e-06, -4.210350155e-07,
         -1.227321723e-07),
    64: (0.38939845902587233, -0.009749577193235737, -0.00021923576383388928, -1.5038547200567218e-05,
         -1.8349101326980955e-06, -3.483855761044292e-07, -1.0001288294863642e-07, -4.312917729178674e-08,
         -2.3373928208258785e-08, -8.42776609371172e-09, 6.734464815944818e-09, 1.4034238781965698e-08,
         5.974437605775252e-09, -7.642394134085494e-09, -7.888351502598388e-09, 3.426234148513128e-09,
         6.242741211608715e-09, -1.4387250527343433e-09, -3.794670887801082e-09, 5.295625437062117e-10,
         1.684898442480518e-09, -1.4011625163027393e-10, -4.75881881808065e-10, 1.8515118799211388e-11,
         6.305965163214771e-11),
}  # fmt: skip
"""i1e(x) sqrt(x) for x from 8 on, in 16 / x - 1."""
_ERFINV_LAST = {32: 4.25, 64: 6.25}
_STIRLING_CONSTANT = math.log(2 * math.pi) / 2


def _in_float64(function: Callable[[Expr, int], Expr]) -> Callable[[Expr], Expr]:
    """Return a function that computes in float64: the roundings of float32 would leave several times the error of the
    libraries of processors. It is given how many bits the result has."""
    return lambda x: te.cast(function(te.cast(x, float64), x.dtype.bits), x.dtype)


def _polynomial(t: Expr, series: Sequence[float]) -> Expr:
    *lower, highest = series
    total: Expr = te.constant(highest, t.dtype)
    for coefficient in reversed(lower):
        total = total * t + coefficient
    return total


def _number(value: float) -> Expr:
    return te.constant(value, float64)


# Of the error function


def _exp_of_square(a: Expr, sign: float) -> Expr:
    """exp(sign * a²). The square of the upper digits of ``a`` is exact, and what it lacks is put back."""
    steps = 16.0 if a.dtype.bits == 32 else 65536.0
    a = te.minimum(a, 64.0)  # beyond it the result is 0, or infinite
    high = te.floor(a * steps + 0.5) * (1.0 / steps)
    return te.exp(high * high * sign) * te.exp((a - high) * (a + high) * sign)


def _erfcx_above(a: Expr) -> Expr:
    """exp(a²) erfc(a), for ``a`` of 0 and more."""
    return _polynomial(1.0 - 6.0 / (a + 3.0), _ERFCX[a.dtype.bits]) / (a + 0.5)


def _erfc(x: Expr) -> Expr:
    a = te.absolute(x)
    above = _erfcx_above(a) * _exp_of_square(a, -1.0)
    return te.select(a < 0.5, 1.0 - x * _polynomial(x * x, _ERF[x.dtype.bits]), te.select(x < 0, 2.0 - above, above))


def _erfcx(x: Expr) -> Expr:
    a = te.absolute(x)
    above = _erfcx_above(a)
    return te.select(x < 0, 2.0 * _exp_of_square(a, 1.0) - above, above)


def _erfinv(x: Expr, bits: int) -> Expr:
    w, last = -te.log((1.0 - x) * (x + 1.0)), _ERFINV_LAST[bits]
    near, far = w * 0.32 - 1.0, (te.sqrt(w) * 2.0 - (last + 2.5)) * (1.0 / (last - 2.5))
    inside = te.select(w < 6.25, _polynomial(near, _ERFINV_NEAR[bits]), _polynomial(far, _ERFINV_FAR[bits]))
    return x * te.select(te.absolute(x) < 1.0, inside, w)


# Of the gamma function


def _lgamma(x: Expr, bits: int) -> Expr:
    """log |Γ(x)|. Near 1 and 2, where it is 0, it is a polynomial times the distance; beyond, the argument is moved
    there by Γ(z + 1) = z Γ(z), and from 8.625 on it is Stirling's series. Below 0 it is reflected:
    |Γ(x) Γ(-x)| = π / |x sin(πx)|."""
    z = te.minimum(te.absolute(x), 1e60 if bits == 32 else 1e307)  # beyond it the result is infinite
    below = x < (-1e-10 if bits == 32 else -1e-18)  # nearer to 0, lgamma(-x) is lgamma(x)
    sign = te.select(below, -1.0, _number(1.0))
    first, second = te.select(z < 0.625, z, z - 1.0), z - te.maximum(te.floor(z - 1.625), 0.0) - 2.0
    near = te.select(
        z < 1.5, first * _polynomial(first, _LGAMMA_1[bits]), second * _polynomial(second, _LGAMMA_2[bits])
    )
    inverse = 1.0 / z
    series = _polynomial(inverse * inverse, _STIRLING[bits]) * inverse + (_STIRLING_CONSTANT - z)
    # All factors have one logarithm: those of moving, and up to 8.625 those of reflecting.
    rest = z - te.floor(z + 0.5)
    sine = te.absolute(rest) * _polynomial(rest * rest, _SINE[bits])
    factors: Expr = z - 1.0
    for k in range(2, 7):
        factors = factors * te.select(z < k + 1.625, 1.0, z - float(k))
    moved = te.select(z < 2.625, 1.0, factors) * te.select(below, z * sine, 1.0)
    moved = te.select(z < 0.625, te.select(below, sine, z), te.select(z < 8.625, moved, z))
    times = te.select(z < 8.625, te.select(z < 0.625, -1.0, sign), (z - 0.5) * sign)
    found = te.select(z < 8.625, near, series) * sign + te.log(moved) * times
    # Float32 has digits enough for the lesser part of a sum.
    lesser = te.cast(te.log(te.cast(z * sine, DTYPES[f"float{bits}"])), float64)
    found = found - te.select(z < 8.625, 0.0, te.select(below, lesser, 0.0))
    return te.select(x < -1e30, math.inf, found)  # every such float is a whole number


def _digamma(x: Expr, bits: int) -> Expr:
    """The derivative of lgamma. From 7 on it is a series; below, the argument is moved there by ψ(z + 1) = ψ(z) + 1 /
    z, whose other terms are taken in pairs; below 0 it is reflected: ψ(x) = ψ(1 - x) - π / tan(πx)."""
    z = te.select(x < 0, 1.0 - x, x)
    product, total = z * (z + 7.0), z * 2.0 + 7.0
    pairs = total / (product + 6.0) + total / (product + 10.0) + total / (product + 12.0)
    below = te.select(z < 7.0, pairs + 1.0 / z, 0.0)
    far = te.select(z < 7.0, z + 7.0, z)
    square = 1.0 / (far * far)
    above = te.log(far) - (0.5 / far - square * _polynomial(square, _DIGAMMA[bits]))
    angle = (x - te.floor(x + 0.5)) * math.pi
    # The logarithm of what is below 0 is NaN, as it must be at whole numbers below 0.
    cotangent = te.select(te.equal(angle, 0.0), te.log(x), te.cos(angle) * math.pi / te.sin(angle))
    return above - below - te.select(x < 0, cotangent, 0.0)


# Modified Bessel functions of the first kind, times exp(-|x|)


def _i0e(x: Expr, bits: int) -> Expr:
    a = te.absolute(x)
    far = _polynomial(16.0 / a - 1.0, _I0E_FAR[bits]) / te.sqrt(a)
    return te.select(a < 8.0, _polynomial(a * 0.25 - 1.0, _I0E_NEAR[bits]), far)


def _i1e(x: Expr, bits: int) -> Expr:
    a = te.absolute(x)
    far = _polynomial(16.0 / a - 1.0, _I1E_FAR[bits]) / te.sqrt(a)
    return te.select(a < 8.0, x * _polynomial(a * 0.25 - 1.0, _I1E_NEAR[bits]), te.select(x < 0, -far, far))


# The same by NumPy, in float64


def _elementwise(function: Callable[[float], float]) -> Callable[[Array], Array]:
    return np.vectorize(function, otypes=[np.float64])


def _lgamma_numpy(x: float) -> float:
    try:
        return math.lgamma(x)
    except (ValueError, OverflowError):  # a whole number below 1, and what is beyond the largest float
        return math.inf


def _erfcx_numpy(x: float) -> float:
    if x < 25.0:
        return math.exp(min(x * x, 709.0)) * math.erfc(x) if x > -26.7 else math.inf
    y = 0.5 / (x * x)
    return (1.0 - y * (1.0 - 3.0 * y * (1.0 - 5.0 * y * (1.0 - 7.0 * y)))) / (x * math.sqrt(math.pi))


def _erfinv_numpy(x: float) -> float:
    """Return what ``math.erf`` gives ``x`` for, by Newton's steps on the logarithm of erfc, whose slope is smooth."""
    if not abs(x) < 1.0:
        return x * math.inf if abs(x) == 1.0 else math.nan
    rest, y = 1.0 - abs(x), math.sqrt(-math.log((1.0 - abs(x)) * (1.0 + abs(x)))) * 0.9
    for _ in range(40):
        found = math.erfc(y)
        if abs(x) < 0.5:
            y += (abs(x) - math.erf(y)) * math.exp(y * y) * math.sqrt(math.pi) / 2
        else:
            y += math.log(found / rest) * found * math.exp(y * y) * math.sqrt(math.pi) / 2
    return math.copysign(y, x)


def _digamma_numpy(x: float) -> float:
    if x <= 0.0 and x == math.floor(x):
        return -math.copysign(math.inf, x) if x == 0.0 else math.nan
    if x < 0.0:
        return _digamma_numpy(1.0 - x) - math.pi / math.tan(math.pi * (x - math.floor(x + 0.5)))
    moved = 0.0
    while x < 20.0:
        moved, x = moved + 1.0 / x, x + 1.0
    y = 1.0 / (x * x)
    series = y * (1 / 12 - y * (1 / 120 - y * (1 / 252 - y * (1 / 240 - y * (1 / 132 - y * 691 / 32760)))))
    return math.log(x) - 0.5 / x - series - moved


def _bessel_numpy(order: int) -> Callable[[float], float]:
    """Return I_n(x) exp(-|x|): the mean of exp(|x| (cos θ - 1)) cos(nθ) over a circle, or an expansion of large x."""

    def function(x: float) -> float:
        a, sign = abs(x), math.copysign(1.0, x) if order else 1.0
        if a < 200.0:
            angles = np.arange(256) * (math.pi / 128)
            return sign * float(np.mean(np.exp(a * (np.cos(angles) - 1.0)) * np.cos(order * angles)))
        term = total = 1.0
        for k in range(1, 9):
            term *= -(4 * order * order - (2 * k - 1) ** 2) / (8 * k * a)
            total += term
        return sign * total / math.sqrt(2 * math.pi * a)

    return function


SPECIAL = (
    pointwise("erfc", "1 - erf(x), accurate where that is small", _erfc, _elementwise(math.erfc), uses=32),
    pointwise("erfcx", "exp(x * x) * erfc(x)", _erfcx, _elementwise(_erfcx_numpy), uses=32),
    pointwise("erfinv", "what erf gives x for", _in_float64(_erfinv), _elementwise(_erfinv_numpy), uses=64),
    pointwise("lgamma", "the logarithm of |Γ(x)|", _in_float64(_lgamma), _elementwise(_lgamma_numpy), uses=64),
    pointwise("digamma", "the derivative of lgamma", _in_float64(_digamma), _elementwise(_digamma_numpy), uses=64),
    pointwise(
        "i0e",
        "the modified Bessel function I0 times exp(-|x|)",
        _in_float64(_i0e),
        _elementwise(_bessel_numpy(0)),
        uses=64,
    ),
    pointwise(
        "i1e",
        "the modified Bessel function I1 times exp(-|x|)",
        _in_float64(_i1e),
        _elementwise(_bessel_numpy(1)),
        uses=64,
    ),
)
