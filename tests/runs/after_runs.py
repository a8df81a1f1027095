"""Runs of a second with something done to the trained network, for tests of `RunConfig.after`."""

from dataclasses import replace

from small_runs import small_config

KINDS = {
    "adjusted": {"name": "logit_adjustment"},
    "chosen": {"name": "logit_adjustment", "tau": "calibration"},
    "normalised": {"name": "tau_norm"},
    "retrained": {"name": "crt", "training": {"epochs": 2}},
    "scaled": {"name": "lws", "training": {"epochs": 1}, "features": "once"},
}


def with_after(after, **settings):
    return replace(small_config(**settings), after=after)
