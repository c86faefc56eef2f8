"""What a network is trained on: imitation of targets, and the exact policy gradient on a lattice."""

from dataclasses import dataclass

import torch

from stopwise.data.errors import DataError
from stopwise.envs.lattice import Lattice, solve
from stopwise.train.lm.episodes import LmEpisode


@dataclass(frozen=True)
class ActionUse:
    """How a policy acts on one run, each state weighed by its expected visits."""

    value: float  # expected return from the first decision on
    entropy: float  # nats a decision
    rates: tuple[float, float, float]  # share of continue, intervene, stop among its decisions
    visits: float  # expected decisions


def masked_log_policy(logits: torch.Tensor, lattice: Lattice) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities (T, M + 1, C + 1, 3) after the masks, 0 where illegal, and the masks.

    Args:
        logits: (T, M + 1, 3).
        lattice: of the run.
    """
    legal = torch.from_numpy(lattice.legal).to(logits.device)
    spread = logits[:, :, None, :].expand(legal.shape).masked_fill(~legal, float("-inf"))
    return spread.log_softmax(-1).masked_fill(~legal, 0.0), legal


def imitation_loss(logits: torch.Tensor, episode: LmEpisode) -> torch.Tensor:
    """Cross-entropy to the targets, a mean over the run's states with their weights; interventions may be illegal.

    Raises:
        DataError: the episode has no targets.
    """
    if episode.targets is None or episode.weights is None:
        raise DataError(f"{episode.run}: has no targets to imitate")
    legal = torch.from_numpy(episode.lattice.legal[:, :, 0]).to(logits.device)
    targets = torch.from_numpy(episode.targets).to(logits.device, logits.dtype)
    weights = torch.from_numpy(episode.weights).to(logits.device, logits.dtype)
    log_policy = logits.masked_fill(~legal, float("-inf")).log_softmax(-1).masked_fill(~legal, 0.0)
    return -(weights * (targets * log_policy).sum(-1)).mean()


def exact_loss(
    logits: torch.Tensor,
    lattice: Lattice,
    *,
    entropy: float = 0.0,
    kl: float = 0.0,
    reference: torch.Tensor | None = None,
    with_reach: bool = True,
) -> tuple[torch.Tensor, ActionUse]:
    """Minus the all-action policy gradient objective of one run; its gradient is that of -V(start).

    With reach rho and action values q of the present policy, both taken as constants: - sum_s rho(s) sum_a pi(a|s)
    q(s, a). By the policy gradient theorem its gradient is exact, without sampling. Both are made anew at each call.

    Args:
        logits: (T, M + 1, 3) with gradients.
        lattice: of the run.
        entropy: bonus a nat at each state, weighed by its visits.
        kl: price a nat of KL(pi || reference) at each state, likewise.
        reference: logits (T, M + 1, 3) of the policy to stay close to.
        with_reach: False only to show that leaving it out is wrong.

    Returns:
        The loss, and how the policy acts.
    """
    log_policy, _ = masked_log_policy(logits, lattice)
    legal = torch.from_numpy(lattice.legal).to(logits.device)
    policy = log_policy.exp() * legal
    solution = solve(lattice, policy.detach().double().cpu().numpy())
    reach = solution.reach if with_reach else (solution.reach > 0).astype(float)
    rho = torch.from_numpy(reach).to(logits.device, logits.dtype)
    q = torch.from_numpy(solution.q).to(logits.device, logits.dtype)
    objective = (rho[..., None] * policy * q).sum()
    nats = -(policy * log_policy).sum(-1)
    if entropy:
        objective = objective + entropy * (rho * nats).sum()
    if kl and reference is not None:
        log_reference, _ = masked_log_policy(reference, lattice)
        objective = objective - kl * (rho * (policy * (log_policy - log_reference)).sum(-1)).sum()
    visits = float(solution.reach.sum())
    flow = (solution.reach[..., None] * policy.detach().cpu().numpy()).sum(axis=(0, 1, 2)) / visits
    mean_entropy = float((rho * nats).sum().detach()) / float(rho.sum())
    use = ActionUse(float(solution.value), mean_entropy, (float(flow[0]), float(flow[1]), float(flow[2])), visits)
    return -objective, use
