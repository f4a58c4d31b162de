"""The prose about each recipe in docs/recipes.md; it contains no measured numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Words:
    """The prose about one recipe.

    Attributes:
        idea: The method in three sentences.
        caution: A limitation that the measurements do not show, or nothing.
        paper: Where the paper, or its code, differs from this implementation, or nothing.
        bound: Whether it is a reference for comparison rather than a method to use.
    """

    idea: str
    caution: str = ""
    paper: str = ""
    bound: bool = False


_OPEN = "Only for data that need no protection."
_LEVELS = (
    "In faithful mode the accountant is that of Robust-HDP's experiments, whose Renyi orders stop at 64. It requires "
    "more noise than the budget needs, especially for small epsilon. The guarantee still holds."
)
_SCAFFOLD = (
    "The paper clips each tensor at the median of gradient norms, which are not protected, and its accountant ignores "
    "that each tensor is noised separately. Here one fixed clipping norm applies to the whole gradient (or an "
    'adaptive one that is accounted for, `protect = { rule = "dp-sgd", clip = "adaptive" }`). The paper\'s main '
    "epsilon is against a third party; here it is against the server, which sees every update."
)
_CHOICE = (
    "In the paper clients choose by their true losses in every round, which the guarantee does not cover. Here the "
    "choice is noisy, charged to the budget, and made every few rounds."
)

WORDS: Mapping[str, Words] = {
    "fedavg": Words(
        "Every client trains on its own rows for a number of steps and sends the change of its model. The server adds "
        "the mean of these updates, weighted by sample count, and sends out the result. There is no clipping and no "
        "noise, so it shows the cost of privacy in the other recipes.",
        _OPEN,
        bound=True,
    ),
    "dp-fedavg": Words(
        "Like `fedavg`, but each local step is clipped and noised, with the noise that the client's own budget "
        "requires. Weights remain proportional to the sample count, so a client with a strict budget contributes all "
        "of its noise. It is the baseline for the other private recipes.",
        paper=_LEVELS,
        bound=True,
    ),
    "hush": Words(
        "Every client takes the same number of steps, regardless of its batch size, so that clients with equal budgets "
        "contribute equal signal and noise, with batches so large that sampling them costs little noise. Clients "
        "release a mean of their inputs once, with noise and charged to the budget: inputs are centred by it, so that "
        "the common mean no longer uses up the clipping norm, and clients whose data differ as a whole are found by it "
        "and get a model per cluster, as many as there is evidence for. The server weights by the estimated noise and "
        "by the heterogeneity of the clients, and releases an average of its models over the last twentieth of the "
        "rounds.",
        "Inputs are centred if they enter a linear layer with a bias, into which the mean is folded (`logreg`, "
        "`scattering-linear`, `mlp`, and your own modules of that kind). With any other model the recipe runs without "
        'the mean and without clusters, says so, and spends nothing on it. Set `assign = "one"` for one model for '
        "all clients. With few rounds a client makes up to ten passes over its rows per round.",
    ),
    "closed-form": Words(
        "Clients do not train. Each releases, with the noise that all of its budget requires, the second moments of "
        "its rows and their products with the classes, and the server solves for a linear model, with a ridge that "
        "follows from the noise. Wider rows are projected to 256 numbers, and one round is enough.",
        "It needs a linear model with an output for each class, on inputs of about unit variance: fixed features of an "
        "encoder or of scattering (`docs/encoders.md`). Its outputs rank the classes; as probabilities they are not "
        "calibrated.",
        "The paper solves a regression of one data set, with a ridge that bounds the noise from above.",
    ),
    "fedsgd": Words(
        "Clients take few steps with large batches per round, so that their models hardly drift apart between rounds. "
        "All clients have equal weight. The recipe sets only the weights: set `local.steps` and `local.batch_size` "
        "for the steps.",
        _OPEN,
        "In the DP-SCAFFOLD paper it makes one pass over a client's rows in each round.",
    ),
    "dp-fedsgd": Words(
        "Like `fedsgd`, with clipped and noised steps under each client's own budget. Large batches carry less noise "
        "per row, and fewer steps spend less. The recipe sets only the weights: set `local.steps` and "
        "`local.batch_size` for the steps.",
        paper="In the DP-SCAFFOLD paper it makes one pass over a client's rows in each round.",
    ),
    "fedprox": Words(
        "Each local step includes a proximal term of strength `mu` towards the model that was sent. It limits how far "
        "clients with different data drift between rounds. Weights are proportional to the sample count.",
        _OPEN,
        "The paper also samples clients in proportion to their data and averages them equally; here participating "
        "clients are weighted by sample count.",
    ),
    "weiavg": Words(
        "Clients are weighted in proportion to their declared epsilon: clients with less noise have more weight. "
        "Nothing is estimated, so it adds no computation. It trusts the declarations, so a client that overstates its "
        "budget gains weight.",
        paper=_LEVELS,
    ),
    "pfa": Words(
        "Clients with large budgets are called public. Their updates contain little noise, so their directions are "
        "trusted. Every other update is projected onto the `k` leading directions of the public updates, tensor by "
        "tensor, and all are weighted by declared epsilon.",
        "It needs clients with distinctly larger budgets; if all budgets are similar, all clients are public and "
        "nothing is projected.",
        "Algorithm 3 of the paper projects onto the single direction of the weighted mean (`centred = false`); its "
        "code centres the updates, as is done here. Its noise follows a formula without an accountant; here every "
        "plan is accounted. " + _LEVELS,
    ),
    "pfa-plus": Words(
        "Like `pfa`, with the public directions of the previous round. Private clients receive these directions, so "
        "they send `k` numbers per tensor instead of their complete update. In the first round there are no "
        "directions yet, and all clients send complete updates.",
        "It is intended for slow uplinks: a private client downloads more than with other recipes.",
        "As for `pfa`.",
    ),
    "minimum": Words(
        "All clients train with the smallest budget, so one plan serves everybody. No budget is exceeded, but every "
        "client adds as much noise as the strictest one requires. Weights are proportional to the sample count.",
        paper=_LEVELS,
    ),
    "maximum": Words(
        "All clients train with the largest budget. It shows the accuracy without strict budgets. It violates the "
        "budget of every other client, and each result says so.",
        "Never use it with private data.",
        _LEVELS,
        bound=True,
    ),
    "robust-hdp": Words(
        "The server estimates the noise in each update from the updates alone: their common part has low rank, and "
        "the remainder is treated as noise. Clients are weighted by the inverse of the noise, which minimises the "
        "variance. It does not rely on declared budgets, so a false declaration gains nothing.",
        "If clients learn different things, this difference is treated as noise as well. At one learning rate for all "
        "recipes it can be far below `dp-fedavg` where clients take different numbers of steps: weights by noise "
        'favour the clients with few steps, which move the model least. `local.lr = "auto"`, the default, takes the '
        'expected weights into account; equal steps for all clients (`protect = { rule = "dp-sgd", steps = 10 }`) '
        "remove the cause.",
        _LEVELS
        + " The paper's code estimates the noise in the first round only; here, as in its text, it is estimated "
        "in every "
        "round.",
    ),
    "scaffold": Words(
        "Each client's steps are corrected by the difference between its own gradients and the mean over all clients, "
        "so that all clients move towards the common optimum. The corrections follow from updates that were already "
        "sent, so the server stores them and clients are stateless. All clients have equal weight.",
        _OPEN,
    ),
    "scaffold-warm": Words(
        "Like `scaffold`, but the first `warm` rounds do not change the model. In these rounds all clients compute "
        "gradients at the same point, so that the corrections are known before they are first used. Warm-up rounds "
        "count as rounds.",
        _OPEN,
    ),
    "dp-scaffold": Words(
        "Like `scaffold`, with clipped and noised steps under each client's own budget; the correction is added after "
        "the noise. It is computed from noisy updates, so it has no privacy cost. All clients have equal weight, "
        "regardless of their noise.",
        paper=_SCAFFOLD,
    ),
    "dp-scaffold-warm": Words(
        "Like `dp-scaffold`, but the first `warm` rounds do not change the model and only initialise the corrections. "
        "These rounds consume budget like any other. In return, the first model updates are corrected as well.",
        paper=_SCAFFOLD,
    ),
    "rc-dpfl": Words(
        "There is one model per cluster of clients, and the clusters are unknown. The first round uses full batches, "
        "which contain the least noise, and a Gaussian mixture is fitted to its updates; for some rounds clients are "
        "assigned at random with the mixture's probabilities; later each client chooses the model with the lowest "
        "loss. This choice is computed from noisy sums of bounded losses and charged to the same budget.",
        "It splits the clients and spends part of the budget on the choice, so it needs clusters that really exist.",
        _CHOICE
        + " The paper standardises the features, which drowns a signal in few coordinates; here they are only centred.",
    ),
    "km-cdpfl": Words(
        "There is one model per cluster. After every round, k-means on the updates determines the clusters, and each "
        "update is added to the model of its cluster. It uses one round at a time, so noise moves clients between "
        "clusters.",
        paper="The paper does not specify how clusters of consecutive rounds correspond; here a cluster keeps the "
        "model "
        "that most of its members had.",
    ),
    "f-cdpfl": Words(
        "There is one model per cluster, with different initial weights. Each client chooses the model with the "
        "lowest loss, from the first round on (IFCA). The choice is noisy, charged to the budget, and repeated every "
        "few rounds (`every`).",
        paper=_CHOICE,
    ),
    "o-cdpfl": Words(
        "There is one model per cluster, and the true clusters are known. Only a simulation knows them. It is an "
        "upper bound for the recipes that have to find the clusters.",
        "Groups that would benefit from a shared model are separated as well.",
        bound=True,
    ),
    "padpfl": Words(
        "Each client has an impact factor, set at enrolment from information about its data, and these factors are "
        "the weights; they can change from a given round on. Steps have a proximal term towards the model that was "
        "sent, as in `fedprox`. A factor of zero excludes a client, and the weight of an absent client is "
        "redistributed to the others.",
        "The factors must be known in advance; without any, all clients have equal weight.",
        "As published, clients train without noise, clip their model to a norm and noise it once per round, by a "
        "formula that does not satisfy its stated epsilon: in faithful mode there is no guarantee, and the run says "
        "so.",
    ),
}
