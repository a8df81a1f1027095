"""Your own images, from a file or folder to advice: `python examples/your_data.py folder:DIR 15`."""

import sys

from lt_lib.recommend import recommend
from lt_lib.runs import budget, card, compare, own, timing

source, minutes = sys.argv[1], float(sys.argv[2])
base = own.own_config(source)
plan = budget.plan(
    minutes, timing.measure_costs(base, ["balanced softmax", "CE + logit adjustment", "LDAM-DRW"])
)
print(base.split().note, plan.text(), sep="\n\n", flush=True)
found = compare.compare_methods(plan, base)
advice = recommend(found.scores(), test_counts=base.split().test.counts(base.split().classes))
print(advice.table(), advice.text, *advice.notes, found.note, sep="\n\n")
print("Saved", card.save_run("my-model", found.runs[advice.advised][0]))
