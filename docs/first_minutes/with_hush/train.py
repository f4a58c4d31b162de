"""Three clients with budgets of their own, in Hush."""

import hush

sim = hush.Simulation("digits", "logreg", clients=3, epsilon=[1.0, 2.0, 4.0], delta=1e-4, rounds=10, batch_size=32)
result = sim.fit("run", ledgers="ledgers")
print(result)
print(result.guarantees)
