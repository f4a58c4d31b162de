"""Privacy audits: attacks on a run, and the resulting lower bound on epsilon."""
