"""Our ETKF as a method of DAPPER beside DAPPER's own EnKF("Sqrt"), on its standard Lorenz-63 and Lorenz-96.

Both see the same truths, observations and first ensembles. The mean difference of the RMSE over runs is to be within two standard
errors of zero.
"""

import argparse

import dapper
import dapper.tools.progressbar
import numpy as np
from dapper.da_methods import EnKF
from dapper.mods.Lorenz63.sakov2012 import HMM as LORENZ63
from dapper.mods.Lorenz96.sakov2008 import HMM as LORENZ96

from bieqno.assimilation import ETKF
from bieqno.interop.dapper import Analysis

SETUPS = {
    "Lorenz-63 (sakov2012)": (LORENZ63, {"N": 10, "infl": 1.02, "rot": True}),
    "Lorenz-96 (sakov2008)": (LORENZ96, {"N": 24, "infl": 1.013, "rot": True}),
}


def errors(HMM, settings: dict, seed: int) -> list[float]:
    """Return the RMSE of both on one truth, averaged over the windows after the burn-in."""
    dapper.set_seed(seed)
    truth, observed = HMM.simulate()
    found = []
    for method in (EnKF("Sqrt", **settings), Analysis(ETKF(), **settings)):
        dapper.set_seed(seed + 1)
        method.assimilate(HMM, truth, observed)
        method.stats.average_in_time()
        found.append(float(method.avrgs.err.rms.a.val))
    return found


def main() -> None:
    """Print a line for each set-up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    runs = parser.parse_args().runs
    dapper.tools.progressbar.disable_progbar = True
    for name, (HMM, settings) in SETUPS.items():
        theirs, ours = np.array([errors(HMM, settings, 1000 * run) for run in range(1, runs + 1)]).T
        mean, wrong = np.mean(ours - theirs), np.std(ours - theirs, ddof=1) / np.sqrt(runs)
        print(
            f"{name}, {HMM.tseq.Ko} windows, {runs} runs: DAPPER {theirs.mean():.4f}, ours {ours.mean():.4f}, "
            f"difference {mean:+.4f} +- {wrong:.4f}: {'equal' if abs(mean) <= 2 * wrong else 'DIFFERENT'}",
            flush=True,
        )


if __name__ == "__main__":
    main()
