"""What docs/recipes.md says of each recipe in words: no measured number is written here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Words:
    """Of one recipe.

    Attributes:
        idea: Three sentences.
        caution: What no measurement shows, or nothing.
        paper: Where the paper, or its code, differs from what is done here, or nothing.
        bound: Whether it is there to compare with, and not to be chosen.
    """

    idea: str
    caution: str = ""
    paper: str = ""
    bound: bool = False


_OPEN = "Only for data that need no protection."
_LEVELS = (
    "In faithful mode the accountant is that of Robust-HDP's experiments, whose Renyi orders stop at 64: it asks for "
    "more noise than the budget needs, the more so the smaller epsilon is. The promise holds all the same."
)
_SCAFFOLD = (
    "The paper clips each tensor at the median of norms that nothing protects, and its accountant leaves out that each "
    "tensor is noised on its own; here one fixed clip holds for the whole gradient (or one that adapts and is paid "
    'for, `protect = { rule = "dp-sgd", clip = "adaptive" }`). Its headline epsilon is toward a third party; '
    "here it is toward the server, which sees every update."
)
_CHOICE = (
    "In the paper clients choose by their true losses in every round, which nothing covers; here the choice is noised, "
    "paid for, and made every few rounds."
)

WORDS: Mapping[str, Words] = {
    "fedavg": Words(
        "Every client trains on its own rows for a while and sends how its model has moved. The server adds the mean "
        "of these moves, weighted by amount of data, and sends the result out again. There is no clip and no noise, so "
        "it shows what privacy costs the others.",
        _OPEN,
        bound=True,
    ),
    "dp-fedavg": Words(
        "As `fedavg`, but each step of a client is clipped and noised, with just the noise that its own budget asks "
        "for. Weights stay those by amount of data, so a client with a strict budget brings in all of its noise. The "
        "other private recipes are read against it.",
        paper=_LEVELS,
        bound=True,
    ),
    "hush": Words(
        "Every client makes one pass over its rows in the same number of steps, whatever batch it would take, so that "
        "clients of equal budgets bring equal news and noise, and rows are counted from a mean that clients tell "
        "once, noised and paid for, so that what all rows share takes nothing of the clip. The server weighs by the "
        "noise it hears and by how much clients differ. It releases an average of its models.",
        'The centre needs a model that is one linear layer (set `centre = 0` for others); `local.lr = "auto"` '
        "takes the learning rate from the noise to come.",
    ),
    "fedsgd": Words(
        "Clients take few, large steps a round, so that they hardly drift apart between rounds. All of them count "
        "alike. The recipe sets the weights only: set `local.steps` and `local.batch_size` for the steps.",
        _OPEN,
        "In the DP-SCAFFOLD paper it makes one pass over a client's rows in each round.",
    ),
    "dp-fedsgd": Words(
        "As `fedsgd`, with clipped and noised steps on each client's own budget. Large batches carry less noise for "
        "each row, and fewer steps spend less. The recipe sets the weights only: set `local.steps` and "
        "`local.batch_size` for the steps.",
        paper="In the DP-SCAFFOLD paper it makes one pass over a client's rows in each round.",
    ),
    "fedprox": Words(
        "Each local step is also pulled back to the model that was sent, with strength `mu`. Clients whose data differ "
        "then cannot run far off between rounds. Weights are those by amount of data.",
        _OPEN,
        "The paper also draws clients in proportion to their data and averages them evenly; here who takes part is "
        "weighted by amount of data.",
    ),
    "weiavg": Words(
        "Clients count in proportion to the epsilon that they declare: who needs less noise is heard more. Nothing is "
        "estimated, so it takes no time. It believes what it is told, so a client that overstates its budget gains "
        "weight.",
        paper=_LEVELS,
    ),
    "pfa": Words(
        "Clients with large budgets are called public: there is little noise in their updates, so the directions of "
        "these are trusted. Of every other update only what lies in the `k` leading directions is kept, tensor by "
        "tensor. All are then weighted by declared epsilon.",
        "It needs clients whose budgets stand out; where all are alike, all are public and nothing is projected.",
        "Algorithm 3 of the paper projects on the one direction of the weighted mean (`centred = false`); its code "
        "centres, as is done here. Its noise follows a formula without an accountant; here every plan is accounted. "
        + _LEVELS,
    ),
    "pfa-plus": Words(
        "As `pfa`, with the public directions of the round before. Private clients are told these, so they send `k` "
        "numbers a tensor in place of their whole update. In the first round there are none yet, and all send all.",
        "It is for slow uplinks: a private client receives more than it would otherwise.",
        "As for `pfa`.",
    ),
    "minimum": Words(
        "Everyone trains at the smallest budget of all, so that one plan serves everybody. Nobody's promise is broken, "
        "but there is as much noise everywhere as the most careful client asks for. Weights are those by amount of "
        "data.",
        paper=_LEVELS,
    ),
    "maximum": Words(
        "Everyone trains at the largest budget of all. It shows what could be had if nobody were careful. It breaks "
        "the promise to every client with a smaller budget, and each result says so.",
        "Never with data that matter.",
        _LEVELS,
        bound=True,
    ),
    "robust-hdp": Words(
        "The server estimates the noise in each update from the updates alone: what they have in common is of low "
        "rank, and the rest is taken for noise. Clients count by the inverse of it, which are the weights of least "
        "variance. No declared budget is believed, so a lie about it gains nothing.",
        "Where clients differ in what they learn, that difference is taken for noise, too.",
        _LEVELS + " The paper's code estimates in the first round only; here, as in its text, in every round.",
    ),
    "scaffold": Words(
        "Each client's steps are corrected by how its gradients have differed from the mean of all, so that all head "
        "for the common optimum. The corrections follow from what clients have sent already, so the server keeps them "
        "and clients keep nothing. All clients count alike.",
        _OPEN,
    ),
    "scaffold-warm": Words(
        "As `scaffold`, but the first rounds (`warm` of them) move no model. In these all clients measure their "
        "gradients at the same point, so that the corrections are known before they are first used. They count as "
        "rounds.",
        _OPEN,
    ),
    "dp-scaffold": Words(
        "As `scaffold`, with clipped and noised steps on each client's own budget; the correction is added after the "
        "noise. It is made from noised updates, so it costs no privacy. All clients count alike, whatever their noise.",
        paper=_SCAFFOLD,
    ),
    "dp-scaffold-warm": Words(
        "As `dp-scaffold`, but the first rounds (`warm` of them) move no model and only fill the corrections. These "
        "rounds cost budget like any other. What they buy is that the first moves are corrected, too.",
        paper=_SCAFFOLD,
    ),
    "rc-dpfl": Words(
        "There is a model for each cluster of clients, and the clusters are not known. The first round takes full "
        "batches, which carry least noise, and a mixture is fitted to its updates; for some rounds clients are placed "
        "by chance, as they fit, and later each chooses the model with the lowest loss. That choice is made from "
        "noised sums of bounded losses and comes out of the same budget.",
        "It splits the clients and spends some of the budget on choosing, so it needs clusters that are really there.",
        _CHOICE + " The paper's features are standardised, which drowns a signal that sits in few coordinates; here "
        "they are only centred.",
    ),
    "km-cdpfl": Words(
        "There is a model for each cluster. After every round k-means on the updates says who belongs together, and "
        "each update is added to the model of its cluster. It looks at one round at a time, so noise moves clients.",
        paper="The paper does not say what becomes of a cluster from one round to the next; here it keeps the model "
        "that most of its members had.",
    ),
    "f-cdpfl": Words(
        "There is a model for each cluster, and they start apart. Each client chooses the one with the lowest loss, "
        "from the first round on (IFCA). The choice is noised, paid for, and made anew every few rounds (`every`).",
        paper=_CHOICE,
    ),
    "o-cdpfl": Words(
        "There is a model for each cluster, and the true clusters are known beforehand. Only a simulation knows them. "
        "So it is a bound for every recipe that has to find them.",
        "Groups that should share a model are kept apart as well.",
        bound=True,
    ),
    "padpfl": Words(
        "Each client has an impact factor, set at enrolment from what is known of its data, and these are the weights; "
        "they may change from a given round on. Steps are pulled back to the model that was sent, as in `fedprox`. A "
        "factor of zero leaves a client out, and the share of an absent one goes to the others.",
        "Somebody must know the factors; without any, all clients count alike.",
        "As printed, clients train without noise, cut their model to a norm and noise it once a round, by a formula "
        "that does not keep the epsilon it names: in faithful mode nothing is promised, and the run says so.",
    ),
}
