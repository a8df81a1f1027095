"""Your own images, from a folder to advice: `python examples/your_data.py folder:DIR MINUTES [SIZE]`."""

import sys

from lt_lib.recommend import recommend
from lt_lib.runs import budget, card, compare, own, timing

sys.tracebacklimit = 0  # what cannot be done is told in a sentence
source, minutes, *size = sys.argv[1:]
base = own.own_config(source, *map(int, size))
methods = ["balanced softmax", "CE + logit adjustment", "LDAM-DRW"]
print(base.split().note, "Measuring how long a step of each method takes here ...", sep="\n\n", flush=True)
plan = budget.plan(float(minutes), timing.measure_costs(base, methods))
print(plan.text(), flush=True)
found = compare.compare_methods(plan, base)
advice = recommend(found.scores(), test_counts=base.split().test.counts(base.split().classes))
print(advice.table(), advice.text, *advice.notes, found.note, sep="\n\n")
print("Saved", card.save_run("my-model", found.runs[advice.advised][0]))
