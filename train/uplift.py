"""Fitting the intervention model `uplift` on logs in which a controller really intervened."""

from dataclasses import dataclass

import numpy as np

from stopwise.controllers.base import check_number
from stopwise.controllers.logistic import design_matrix
from stopwise.data.errors import DataError
from stopwise.data.records import Action
from stopwise.envs.uplift import UpliftFit
from stopwise.signals.features import FeatureSpec, build_features
from stopwise.signals.table import SignalTable
from stopwise.train.regression import standardisation

MIN_INTERVENTIONS = 50


@dataclass(frozen=True, slots=True)
class UpliftOptions:
    """How the model is fitted."""

    horizon: int = 2  # searches that count for the intervention, the injected one included
    C: float = 0.1  # inverse strength of the L2 penalty on standardised columns

    def __post_init__(self) -> None:
        check_number("uplift: horizon", self.horizon, low=1, whole=True)
        check_number("uplift: C", self.C, low=1e-9)


def fit_uplift(table: SignalTable, features: FeatureSpec, options: UpliftOptions = UpliftOptions()) -> UpliftFit:
    """Probability that one of the searches right after an intervention brings new gold.

    Args:
        table: signals of controlled runs (`stopwise collect` with a controller); their training questions are used.
        features: what the probability depends on.
        options: horizon and penalty.

    Raises:
        DataError: fewer than `MIN_INTERVENTIONS` interventions, or all of one outcome.
    """
    from sklearn.linear_model import LogisticRegression

    known = table.select(table.has_gold).split("train")
    rows = np.flatnonzero(known.label("logged_action") == Action.INTERVENE)
    stops = known.offsets[1:][known.episode_of_row[rows]]
    nir = known.label("nir")
    productive = np.array(
        [
            bool((nir[row + 1 : min(row + 1 + options.horizon, stop)] > 0).any())
            for row, stop in zip(rows, stops, strict=True)
        ],
        dtype=bool,
    )
    if len(rows) < MIN_INTERVENTIONS or productive.all() or not productive.any():
        raise DataError(
            f"uplift: {len(rows)} interventions on training questions, {int(productive.sum())} of them productive; "
            f"expected at least {MIN_INTERVENTIONS} with both outcomes; collect more runs with a controller"
        )
    design = design_matrix(build_features(known, features)[rows])
    mean, scale = standardisation(design)
    model = LogisticRegression(C=options.C, max_iter=2000).fit((design - mean) / scale, productive)
    return UpliftFit(
        features=features,
        mean=mean,
        scale=scale,
        coef=model.coef_[0].astype(np.float64),
        intercept=float(model.intercept_[0]),
        interventions=len(rows),
        productive=int(productive.sum()),
        horizon=options.horizon,
    )
