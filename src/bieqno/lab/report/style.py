"""One colour, line and marker for each method, the same in every figure and safe for colour-blind readers.

The colours are those of Okabe and Ito, with seven more; they differ in lightness as well as in hue, can be seen on white and on
black, and line and marker tell what colour alone would not.
"""

from typing import NamedTuple


class Style(NamedTuple):
    """How a method is called and drawn."""

    label: str
    color: str
    line: str
    marker: str


_STYLES = {
    "ggp": Style("gGP", "#0072B2", "-", "o"),
    "ggp-known-noise": Style("gGP, noise known", "#A6761D", "-", "8"),
    "ggp-fine-tuned": Style("gGP, fine-tuned", "#44AA99", "-", "p"),
    "ggp-experts": Style("gGP, local experts", "#332288", "-", "h"),
    "ggp-trained": Style("gGP, no prior", "#117733", "-", "d"),
    "ggp-paper": Style("gGP, paper", "#56B4E9", "-", "s"),
    "limit": Style("who knows the two levels", "#000000", ":", "*"),
    "gp-se": Style("GP, SE", "#D55E00", "-", "^"),
    "gp-se-learned-noise": Style("GP, SE, noise learned", "#E69F00", "-", "v"),
    "gp-paper": Style("GP, SE, one start", "#999999", "--", "x"),
    "gp-matern12": Style("GP, Matérn-1/2", "#009E73", "--", "D"),
    "gp-matern32": Style("GP, Matérn-3/2", "#CC79A7", "--", "P"),
    "gp-matern52": Style("GP, Matérn-5/2", "#B0406C", "--", "X"),
    "gp-two-se": Style("GP, two SE scales", "#999933", "--", "<"),
    "gp-true": Style("the true GP", "#D55E00", "-", "^"),
    "GNP (published)": Style("GNP, published", "#999999", "--", "x"),
    "ConvGNP (published)": Style("ConvGNP, published", "#009E73", "--", "D"),
    "AR ConvCNP (published)": Style("AR ConvCNP, published", "#CC79A7", "--", "P"),
    "trees": Style("boosted trees", "#882255", "-.", ">"),
    "gp-best": Style("GP, best by likelihood", "#7A67D8", ":", "*"),
    "baseline": Style("no assimilation", "#999999", "--", "x"),
    "EnNF": Style("EnNF", "#0072B2", "-", "o"),
    "EnKF": Style("EnKF", "#D55E00", "-", "^"),
    "EnKF tuned": Style("EnKF, tuned", "#E69F00", "--", "v"),
    "ETKF tuned": Style("ETKF, tuned", "#009E73", "--", "D"),
    "LETKF tuned": Style("LETKF, tuned", "#CC79A7", "-.", "P"),
    "EnNF, full value": Style("EnNF, full value", "#56B4E9", "--", "s"),
    "EnNF, no anomalies": Style("EnNF, no anomalies", "#E69F00", "--", "v"),
    "EnNF, error input": Style("EnNF, error input", "#009E73", "--", "D"),
    "EnNF, whole ensembles": Style("EnNF, whole ensembles", "#CC79A7", "--", "P"),
    "EnNF, good priors only": Style("EnNF, good priors only", "#B0406C", "--", "X"),
    "EnNF, stacked weights": Style("EnNF, stacked weights", "#999933", "--", "<"),
    "EnNF fine-tuned": Style("EnNF, fine-tuned", "#56B4E9", "-", "s"),
    "iterative EnKF tuned": Style("iterative EnKF, tuned", "#999933", "--", "<"),
    "particle filter tuned": Style("particle filter, tuned", "#7A67D8", ":", "*"),
    "MNMEF (published)": Style("MNMEF, published", "#D55E00", "--", "X"),
    "LETKF (published)": Style("LETKF, published", "#999999", "--", "x"),
    "particle filter": Style("particle filter", "#7A67D8", ":", "*"),
}


def style_of(method: str) -> Style:
    """The style of a method; grey under its own name if it has none."""
    return _STYLES.get(method, Style(method, "#666666", "-", "."))
